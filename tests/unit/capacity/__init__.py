"""Tests: unit/plan."""
