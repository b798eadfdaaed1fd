"""Weights to 8 or 4 bits, a group of inputs at a time, and GGUF blocks taken apart.

A quantised weight is a tuple of tensors by row, before it is packed: int8 has values,
[rows, in] int8, and scales, [rows, groups]; int4 has values, [rows, in] uint8 of 0 to 15,
scales and minimums. Scales and minimums are float16, as in GGUF, so blocks that a file holds
in the wanted format keep their bits.
"""

import torch
from torch import Tensor

from nanoserve.plan.weight_plan import LinearFormat
from nanoserve.spec.ggml_types import BLOCK_BYTES
from nanoserve.weights.dequant import unpack_nibbles

_BLOCK_VALUES = 32  # of Q8_0, Q4_0 and Q4_1
_MAX_INT8 = 127
_MAX_INT4 = 15
_ZERO_Q4_0 = 8  # the stored value that means zero
_KEPT = {"int8": ("Q8_0",), "int4": ("Q4_0", "Q4_1")}
_CUTS = (0.0, 0.05, 0.1)  # shares of a group's range left out at each end
_NUM_FITS = 2  # after which little is gained
_MIN_VARIANCE = 1e-6  # a group whose values are all one has no slope

QuantizedRows = tuple[Tensor, ...]


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


def quantize_rows(values: Tensor, one: LinearFormat) -> QuantizedRows:
    """Quantise rows, [rows, in], each group of inputs on its own."""
    groups = values.float().view(values.shape[0], -1, one.group_size)
    if one.name == "int8":
        return _quantize_int8(groups)
    return _quantize_int4(groups)


def _quantize_int8(groups: Tensor) -> QuantizedRows:
    """Let the largest value of each group be 127."""
    scales = groups.abs().amax(2).div_(_MAX_INT8).to(torch.float16)
    quotients = groups / _divisors(scales)[..., None]
    return quotients.round_().clamp_(-_MAX_INT8, _MAX_INT8).to(torch.int8).flatten(1), scales


def _quantize_int4(groups: Tensor) -> QuantizedRows:
    """Spread 16 values over each group, where that loses least.

    Begins with the group's range, whole or with its ends cut off, which makes the steps finer
    for all but the values there; then fits scale and minimum to the values that were chosen,
    by least squares, and chooses again. The smallest squared error of all tries is taken.

    Measured: docs/quality.md; the whole range alone has a higher perplexity than Q4_0.
    """
    low, high = groups.amin(2), groups.amax(2)
    best = _choose_values(groups, (high - low) / _MAX_INT4, low)
    least = _squared_error(groups, best)
    for cut in _CUTS:
        span = high - low
        tried = _choose_values(groups, span * (1 - 2 * cut) / _MAX_INT4, low + cut * span)
        for _ in range(_NUM_FITS + 1):
            error = _squared_error(groups, tried)
            is_better = error < least
            least = torch.where(is_better, error, least)
            best = (
                torch.where(is_better[..., None], tried[0], best[0]),
                torch.where(is_better, tried[1], best[1]),
                torch.where(is_better, tried[2], best[2]),
            )
            tried = _choose_values(groups, *_fit(groups, tried[0].float()))
    values, scales, minimums = best
    return values.flatten(1), scales, minimums


def _choose_values(groups: Tensor, scales: Tensor, minimums: Tensor) -> QuantizedRows:
    """Return the nearest of 16 values to each weight, with scale and minimum as stored."""
    scales, minimums = scales.to(torch.float16), minimums.to(torch.float16)
    quotients = (groups - minimums[..., None].float()).div_(_divisors(scales)[..., None])
    return quotients.round_().clamp_(0, _MAX_INT4).to(torch.uint8), scales, minimums


def _fit(groups: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and minimum that bring chosen values closest to their weights."""
    mean_value, mean_weight = values.mean(2, keepdim=True), groups.mean(2, keepdim=True)
    centred = values - mean_value
    variance = centred.square().sum(2).clamp_(min=_MIN_VARIANCE)
    scales = (centred * (groups - mean_weight)).sum(2) / variance
    return scales, (mean_weight - scales[..., None] * mean_value).squeeze(2)


def _squared_error(groups: Tensor, quantized: QuantizedRows) -> Tensor:
    values, scales, minimums = quantized
    restored = values * scales[..., None].float()
    restored.add_(minimums[..., None].float()).sub_(groups)
    return restored.square_().sum(2)


def _divisors(scales: Tensor) -> Tensor:
    """Return the scales in float32, 1 where they are 0: a group of zeros stays one."""
    divisors = scales.float()
    return divisors.masked_fill_(divisors == 0, 1.0)
