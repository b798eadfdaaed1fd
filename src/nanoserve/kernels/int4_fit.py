"""Which integers, scale and minimum stand best for a group of weights in four bits."""

import torch
from torch import Tensor

INT4_MAX = 15
NUM_FITS = 4  # rounds of fitting scale and minimum to the values they led to
_LEAST_SCALE = 2.0**-24  # the smallest float16


def fit_int4(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return values of 0 to 15, scale and minimum for [rows, groups, group_size] of float32.

    Begins at the group's range, then takes turns: values by scale and minimum, scale and
    minimum by least squares over the values. The best round by squared error stays.

    Returns:
        Float32 of the same shape, then [rows, groups, 1] twice, exact in float16.
    """
    low, high = groups.amin(dim=2, keepdim=True), groups.amax(dim=2, keepdim=True)
    scale, minimum = as_half((high - low) / INT4_MAX), low.half().float()
    values = _int4_values(groups, scale, minimum)
    best = values, scale, minimum
    least = _squared_error(groups, *best)
    mean = groups.mean(dim=2, keepdim=True)
    for _ in range(NUM_FITS):
        centred = values - values.mean(dim=2, keepdim=True)
        variance = centred.square().sum(dim=2, keepdim=True).clamp_(min=1e-6)
        slope = (centred * groups).sum(dim=2, keepdim=True) / variance
        scale = as_half(slope)
        minimum = (mean - scale * values.mean(dim=2, keepdim=True)).half().float()
        values = _int4_values(groups, scale, minimum)
        error = _squared_error(groups, values, scale, minimum)
        is_better = error < least
        least = torch.where(is_better, error, least)
        candidate = values, scale, minimum
        best = tuple(  # type: ignore[assignment]
            torch.where(is_better, new, old) for new, old in zip(candidate, best, strict=True)
        )
    return best


def _int4_values(groups: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    return ((groups - minimum) / scale).round_().clamp_(0, INT4_MAX)


def _squared_error(groups: Tensor, values: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    return (values * scale + minimum - groups).square().sum(dim=2, keepdim=True)


def as_half(scale: Tensor) -> Tensor:
    """Return what float16 makes of a scale, which is never 0, as float32."""
    return scale.half().float().clamp_(min=_LEAST_SCALE)
