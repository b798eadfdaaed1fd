"""Packed weights of every format, made of random numbers."""

import torch
from torch import Tensor

from nanoserve.kernels.packed_weight import PackedWeight, pack, quantize_int4, quantize_int8
from nanoserve.kernels.panel_layout import WeightFormat

DENSE: tuple[WeightFormat, ...] = ("float32", "bfloat16", "float16")
FORMATS: tuple[WeightFormat, ...] = (*DENSE, "int8", "int4")


def random_packed(
    format: WeightFormat, out_size: int, in_size: int, group_size: int
) -> PackedWeight:
    weight = torch.randn(out_size, in_size)
    if format == "int8":
        return quantize_int8(weight, group_size)
    if format == "int4":
        return quantize_int4(weight, group_size)
    return pack(weight.to(getattr(torch, format)))


def quantized_activations(x: Tensor, group_size: int) -> Tensor:
    """Return what is left of [T, in] after 8 bits with a scale per group, in float64."""
    steps, scale = _steps(x, group_size)
    return (steps.round() * scale).flatten(1)


def undecided_activations(x: Tensor, group_size: int) -> Tensor:
    """Return the step, [T, in], of each activation whose 8 bits float32 may round either way.

    In float32 an activation over its scale, at most 127, is off by three roundings of
    2**-24 at most; where it lies that near a middle it may go to the other integer. 0 elsewhere.
    """
    steps, scale = _steps(x, group_size)
    is_undecided = (steps - steps.floor() - 0.5).abs() <= 127 * 3 * 2.0**-24
    return (is_undecided * scale).flatten(1)


def _steps(x: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    groups = x.double().view(len(x), -1, group_size)
    scale = (groups.abs().amax(dim=2, keepdim=True) / 127).clamp(min=1e-300)
    return groups / scale, scale
