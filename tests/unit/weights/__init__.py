"""Tests of weights, one file per module."""
