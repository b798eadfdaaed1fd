"""Tests of `nanoserve.attention`."""
