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
    groups = x.double().view(len(x), -1, group_size)
    scale = (groups.abs().amax(dim=2, keepdim=True) / 127).clamp(min=1e-300)
    return ((groups / scale).round() * scale).flatten(1)
