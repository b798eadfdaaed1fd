"""Benchmarks of the server, of the boot and of the scheduler."""
