"""Tests of `nanoserve.runner`."""
