"""Unit tests; the same tree as the package."""
