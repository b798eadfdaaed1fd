"""Tests: socket."""
