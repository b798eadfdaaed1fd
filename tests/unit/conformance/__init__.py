"""Tests of the public suites' runner."""
