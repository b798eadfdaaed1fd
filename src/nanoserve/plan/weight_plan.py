"""Bytes of the weights once placed, and of what lies beside them, from the model's shape alone."""

from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.param_count import count_parameters


def plan_weight_bytes(spec: ModelSpec, itemsize: int) -> int:
    """Return the bytes of all parameters at `itemsize` each; a tied head counts once.

    Packing for the CPU replaces a weight, or leaves it as it lies: it adds nothing.
    """
    return count_parameters(spec).total * itemsize


def plan_rope_bytes(spec: ModelSpec, max_positions: int, itemsize: int) -> int:
    """Return the bytes of the rotary table: cos and sin, positions x head_dim each."""
    return 2 * max_positions * spec.head_dim * itemsize
