"""Tests of `nanoserve.kernels`."""
