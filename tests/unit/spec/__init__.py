"""Tests of spec, one file per module."""
