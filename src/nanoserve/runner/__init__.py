"""Torch execution of one step: pool, buffers, sampler."""
