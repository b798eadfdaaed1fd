"""Checkpoint files to parameters."""
