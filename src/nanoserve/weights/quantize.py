"""What a packed weight's rows come from: GGUF blocks taken apart, or values quantised.

Scales and minimums are float16, as in GGUF, so blocks that a file holds in the wanted format
keep their bits. How values are quantised is in `kernels.row_quantizer`.
"""

import torch
from torch import Tensor

from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.row_quantizer import QuantizedRows, quantize_int4_rows, quantize_int8_rows
from nanoserve.plan.weight_plan import LinearFormat
from nanoserve.spec.ggml_types import BLOCK_BYTES
from nanoserve.weights.dequant import unpack_nibbles

_BLOCK_VALUES = 32  # of Q8_0, Q4_0 and Q4_1
_ZERO_Q4_0 = 8  # the stored value that means zero
_KEPT = {"int8": ("Q8_0",), "int4": ("Q4_0", "Q4_1")}


def can_keep(type_name: str, one: LinearFormat) -> bool:
    """Whether blocks stored as `type_name` are the format's own, so that bits can be kept."""
    return one.group_size == _BLOCK_VALUES and type_name in _KEPT.get(one.name, ())


def split_blocks(raw: Tensor, type_name: str, shape: tuple[int, ...]) -> QuantizedRows:
    """Take GGUF blocks apart, without a change of value.

    Args:
        raw: uint8, whole rows of blocks.
        type_name: Q8_0, Q4_0 or Q4_1.
        shape: Rows and values in each.
    """
    rows, size = shape
    blocks = raw.view(-1, BLOCK_BYTES[type_name])
    scales = blocks[:, :2].contiguous().view(torch.float16).view(rows, -1)
    if type_name == "Q8_0":
        return blocks[:, 2:].contiguous().view(torch.int8).view(rows, size), scales
    start = 2 if type_name == "Q4_0" else 4
    values = unpack_nibbles(blocks[:, start:], torch.uint8).view(rows, size)
    if type_name == "Q4_0":  # a power of two times a float16 is one, or is too large
        return values, scales, scales * -_ZERO_Q4_0
    return values, scales, blocks[:, 2:4].contiguous().view(torch.float16).view(rows, -1)


def quantize_rows(
    values: Tensor,
    one: LinearFormat,
    importance: Tensor | None = None,
    kernels: KernelLibrary | None = None,
) -> QuantizedRows:
    """Quantise rows, [rows, in], each group of inputs on its own.

    Args:
        values: The rows.
        one: int8 or int4.
        importance: Of each input, [in]; see `quantize_int4_rows`. 8 bits need none.
        kernels: Fit 4 bits, where there are any.
    """
    if one.name == "int8":
        return quantize_int8_rows(values, one.group_size)
    return quantize_int4_rows(values, one.group_size, importance, kernels)
