"""Rows of weights to 8 or 4 bits, a group of inputs at a time.

A quantised weight is a tuple of tensors by row, before it is packed: int8 has values,
[rows, in] int8, and scales, [rows, groups]; int4 has values, [rows, in] uint8 of 0 to 15,
scales and minimums. Scales and minimums are float16.
"""

import torch
from torch import Tensor

_MAX_INT8 = 127
_MAX_INT4 = 15
_CUTS = (0.0, 0.05, 0.1)  # shares of a group's range left out at each end
_NUM_FITS = 2  # after which little is gained
_MIN_VARIANCE = 1e-6  # a group whose values are all one has no slope

QuantizedRows = tuple[Tensor, ...]


def quantize_int8_rows(rows: Tensor, group_size: int) -> QuantizedRows:
    """Let the largest value of each group be 127: [rows, in] to values and scales."""
    groups = rows.float().reshape(rows.shape[0], -1, group_size)
    scales = groups.abs().amax(2).div_(_MAX_INT8).to(torch.float16)
    quotients = groups / _divisors(scales)[..., None]
    return quotients.round_().clamp_(-_MAX_INT8, _MAX_INT8).to(torch.int8).flatten(1), scales


def quantize_int4_rows(rows: Tensor, group_size: int) -> QuantizedRows:
    """Spread 16 values over each group, where that loses least: to values, scales, minimums.

    Begins with the group's range, whole or with its ends cut off, which makes the steps finer
    for all but the values there; then fits scale and minimum to the values that were chosen,
    by least squares, and chooses again. The smallest squared error of all tries is taken.

    Measured: docs/quality.md; the whole range alone has a higher perplexity than Q4_0.
    """
    groups = rows.float().reshape(rows.shape[0], -1, group_size)
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
