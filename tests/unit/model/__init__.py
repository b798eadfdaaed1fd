"""Tests of `nanoserve.model`."""
