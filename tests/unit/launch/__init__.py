"""Tests: unit/launch."""
