"""Tests of nanoserve.engine."""
