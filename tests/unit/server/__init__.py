"""Tests of nanoserve.server."""
