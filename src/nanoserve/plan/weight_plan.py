"""Bytes of the weights once placed, from the model's shape alone."""

from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.param_count import count_parameters


def plan_weight_bytes(spec: ModelSpec, itemsize: int) -> int:
    """Return the bytes of all parameters at `itemsize` each; a tied head counts once."""
    return count_parameters(spec).total * itemsize
