"""Rows of weights to 8 or 4 bits, a group of inputs at a time.

A quantised weight is a tuple of tensors by row, before it is packed: int8 has values,
[rows, in] int8, and scales, [rows, groups]; int4 has values, [rows, in] uint8 of 0 to 15,
scales and minimums. Scales and minimums are float16.

4 bits are fitted by a native operator where there is one (`csrc/int4_fit.cpp`), and with
torch otherwise, by the same steps.
"""

import torch
from torch import Tensor

from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.op_args import FitInt4Args, dtype_code

_MAX_INT8 = 127
_MAX_INT4 = 15
# Shares of a group's range left out, at its low and at its high end.
_CUTS = tuple((low, high) for low in (0.0, 0.05, 0.1) for high in (0.0, 0.05, 0.1))
_NUM_FITS = 2  # after which little is gained
_MIN_VARIANCE = 1e-6  # a group whose values are all one has no slope
_PIECE_VALUES = 2**17  # quantised at once: half a MiB of float32 stays in a core's cache
_NATIVE_GROUP = 32  # FIT_GROUP of `csrc/ops.h`
_LEAST_SHARE = 1e-6  # of a group's error that any input has: none is quite without importance

QuantizedRows = tuple[Tensor, ...]


def quantize_int8_rows(rows: Tensor, group_size: int) -> QuantizedRows:
    """Let the largest value of each group be 127: [rows, in] to values and scales."""
    step = max(1, _PIECE_VALUES // rows.shape[1])
    pieces = [_round_piece(rows[i : i + step], group_size) for i in range(0, len(rows), step)]
    values, scales = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return values, scales


def _round_piece(rows: Tensor, group_size: int) -> QuantizedRows:
    groups = rows.float().reshape(rows.shape[0], -1, group_size)
    scales = groups.abs().amax(2).div_(_MAX_INT8).to(torch.float16)
    quotients = groups / _divisors(scales)[..., None]
    return quotients.round_().clamp_(-_MAX_INT8, _MAX_INT8).to(torch.int8).flatten(1), scales


def quantize_int4_rows(
    rows: Tensor,
    group_size: int,
    importance: Tensor | None = None,
    kernels: KernelLibrary | None = None,
) -> QuantizedRows:
    """Spread 16 values over each group, where that loses least: to values, scales, minimums.

    The loss is the squared error of each weight times the importance of its input. Begins
    with the group's range, whole or with its ends cut off, which makes the steps finer for all
    but the values there; then fits scale and minimum to the values that were chosen, by least
    squares, and chooses again. The smallest loss of all tries is taken, its scale and minimum
    as float16 holds them.

    Args:
        rows: Weights, [rows, in], in any float dtype.
        group_size: Divides in.
        importance: Of each input, [in], not negative: its mean square, on any scale. None
            counts all the same.
        kernels: Do it in a tenth of the time, for groups of 32, on the calling thread.

    Measured: docs/quality.md.
    """
    num_groups = rows.shape[1] // group_size
    shares = _shares(importance, group_size, num_groups)
    if kernels is not None and group_size == _NATIVE_GROUP:
        return _fit_native(kernels, rows, shares)
    step = max(1, _PIECE_VALUES // rows.shape[1])
    pieces = [_fit_piece(rows[i : i + step], shares) for i in range(0, len(rows), step)]
    values, scales, minimums = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return values, scales, minimums


def _fit_native(kernels: KernelLibrary, rows: Tensor, shares: Tensor) -> QuantizedRows:
    """Quantise rows, [rows, in], by the shares of `_search`."""
    group_size, num_groups, _ = shares.shape
    rows, by_input = rows.contiguous(), shares[..., 0].T.contiguous()
    values = torch.empty(rows.shape, dtype=torch.uint8)
    scales, minimums = (torch.empty(len(rows), num_groups, dtype=torch.float16) for _ in range(2))
    tensors = (rows, by_input, values, scales, minimums)
    pointers = (tensor.data_ptr() for tensor in tensors)
    in_size = num_groups * group_size
    kernels.run(FitInt4Args(*pointers, len(rows), in_size, dtype_code(rows.dtype)), 1)
    return values, scales, minimums


def _fit_piece(rows: Tensor, shares: Tensor) -> QuantizedRows:
    """Quantise rows, [rows, in], by the shares of `_search`."""
    group_size, num_groups, _ = shares.shape
    # Inputs of a group come first and rows last, so that sums over a group add up vectors.
    groups = rows.float().view(-1, num_groups, group_size).permute(2, 1, 0).contiguous()
    centres = (groups * shares).sum(0)
    groups -= centres
    scales, minimums = _search(groups, shares, centres)
    values = _nearest(groups, scales, minimums.float() - centres).permute(2, 1, 0)
    return values.to(torch.uint8).flatten(1), scales.T, minimums.T


def _shares(importance: Tensor | None, group_size: int, num_groups: int) -> Tensor:
    """Return each input's share of its group's importance, [group_size, groups, 1]."""
    if importance is None:
        return torch.full((group_size, num_groups, 1), 1 / group_size)
    by_group = importance.float().view(num_groups, group_size).T
    largest = by_group.amax(0)
    by_group = by_group / torch.where(largest > 0, largest, 1.0) + _LEAST_SHARE
    return (by_group / by_group.sum(0))[..., None]


def _search(groups: Tensor, shares: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the float16 scale and minimum of each group that lose least, [groups, rows].

    Args:
        groups: Weights less their centre, [group_size, groups, rows].
        shares: Of each input in the loss, [group_size, groups, 1]; they sum to 1.
        centres: The weights' means by those shares, [groups, rows].
    """
    low, span = groups.amin(0), groups.amax(0) - groups.amin(0)
    least = torch.full_like(low, torch.inf)
    best = torch.zeros_like(low, dtype=torch.float16), centres.to(torch.float16)
    for cut_low, cut_high in _CUTS:
        scales, minimums = span * (1 - cut_low - cut_high) / _MAX_INT4, low + cut_low * span
        for _ in range(_NUM_FITS + 1):
            stored = scales.to(torch.float16), (minimums + centres).to(torch.float16)
            scales, minimums = stored[0].float(), stored[1].float() - centres
            values = _nearest(groups, stored[0], minimums)
            weighted = values * shares
            mean, cross = weighted.sum(0), (weighted * groups).sum(0)
            square = weighted.mul_(values).sum(0)
            # The loss but for the mean square of the group, which is the same in every try.
            loss = scales * (scales * square + 2 * (minimums * mean - cross)) + minimums.square()
            is_better = loss < least
            least = torch.where(is_better, loss, least)
            best = (
                torch.where(is_better, stored[0], best[0]),
                torch.where(is_better, stored[1], best[1]),
            )
            scales = cross / (square - mean.square()).clamp_(min=_MIN_VARIANCE)
            minimums = -scales * mean  # the mean of the weights is 0
    return best


def _nearest(groups: Tensor, scales: Tensor, minimums: Tensor) -> Tensor:
    """Return the nearest of 16 values to each weight, as floats."""
    quotients = (groups - minimums).div_(_divisors(scales))
    return quotients.round_().clamp_(0, _MAX_INT4)


def _divisors(scales: Tensor) -> Tensor:
    """Return the scales in float32, 1 where they are 0: a group of zeros stays one."""
    divisors = scales.float()
    return divisors.masked_fill_(divisors == 0, 1.0)
