"""Tests of `nanoserve.sched`."""
