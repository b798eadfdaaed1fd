"""Tests: unit/bench."""
