"""What the CPU's native operators serve, and what a step recorded with them takes.

Pure, so that a plan made without the operators, or torch, is the boot's own.
"""

import math
from functools import partial

from nanoserve.options import Quantization
from nanoserve.plan.backend_facts import BackendFacts
from nanoserve.plan.boot_sizing import step_facts
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import ceil_div

KV_CACHE_DTYPES = ("auto", "int8", "fp8")  # all there are
PARTITION_KEYS = 256  # keys of a long context that one task attends to; fixed, so that a
# request's result depends on no other request
MAX_HEAD_DIM = 256
MAX_GROUP = 64  # query heads of one KV head
SIZE_MULTIPLE = 8
PARTIAL_BYTES = 4  # a partial result is float32 whatever the model's dtype


def native_shape_problem(spec: ModelSpec) -> str | None:
    """Return why the native operators do not serve a model of this shape; None where they do."""
    group = spec.num_heads // spec.num_kv_heads
    if spec.head_dim > MAX_HEAD_DIM or group > MAX_GROUP:
        return (
            f"Native operators serve heads of up to {MAX_HEAD_DIM}, up to {MAX_GROUP} of them for "
            f"each KV head; this model has {group} of {spec.head_dim}."
        )
    for name in ("head_dim", "hidden_size", "intermediate_size"):
        size = getattr(spec, name)
        if size % SIZE_MULTIPLE:
            return f"Native operators serve multiples of {SIZE_MULTIPLE}; {name} is {size}."
    return None


def partials_shape(
    num_heads: int, head_dim: int, rows: int, longest: int
) -> tuple[int, int, int, int]:
    """Return [rows, H, partitions, 2 + D]; no partition where one task sees all keys."""
    num_partitions = ceil_div(longest, PARTITION_KEYS) if longest > PARTITION_KEYS else 0
    return rows, num_heads, num_partitions, 2 + head_dim


def partials_bytes(num_heads: int, head_dim: int, rows: int, longest: int) -> int:
    """Return the bytes of the partial results of `rows` contexts of `longest` tokens.

    Example: 9 heads of 64, 8 rows of 2,048 tokens take 8 * 9 * 8 * 66 * 4 = 152,064.
    """
    return PARTIAL_BYTES * math.prod(partials_shape(num_heads, head_dim, rows, longest))


def native_backend_facts(
    spec: ModelSpec, block_size: int, quantization: Quantization, *, records_steps: bool = True
) -> BackendFacts:
    """Return what native attention says of its recorded steps.

    Args:
        spec: Shape of the model.
        block_size: Tokens per block.
        quantization: Of the weights.
        records_steps: Whether whole steps are native: not where the CPU has a matrix unit,
            whose products are oneDNN's.
    """
    attention_bytes = partial(partials_bytes, spec.num_heads, spec.head_dim)
    weights = quantization if records_steps else None
    return step_facts(spec, False, attention_bytes, block_size, KV_CACHE_DTYPES, weights)
