"""Comparisons with other implementations."""
