"""Tests: reference."""
