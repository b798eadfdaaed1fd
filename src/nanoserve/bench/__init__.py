"""Benchmarks of the server and of the boot."""
