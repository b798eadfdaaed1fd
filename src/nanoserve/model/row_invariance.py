"""Rows that do not depend on how many there are: all of a decoder but its attention.

A library may choose another kernel, which sums in another order, for another number of rows.
oneDNN's packed products do so at one row alone (AMD EPYC, AVX-512, torch 2.13, 1 and 2
threads, float32 and bfloat16, up to 600 rows). Norms, rotation and activation work row by
row. Since nobody promises it, `find_uneven_part` looks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanoserve.model.decoder import Decoder
from nanoserve.model.layers import Linear
from nanoserve.model.rope import Rotation

MIN_ROWS = 2  # one row is multiplied as a vector, in another order
NUM_ROWS = 130  # rows that others are compared with
COMPARED = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 64, 100, 128)


def pad_single_rows(decoder: Decoder) -> None:
    """Let every linear layer of `decoder` multiply one row as it multiplies two."""
    for module in decoder.modules():
        if isinstance(module, Linear):
            module.pad_to(MIN_ROWS)


@torch.inference_mode()
def find_uneven_part(decoder: Decoder, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return which part gives a row other bits beside few rows than beside many, if any does.

    Looks at the first layer, whose shapes are everyone's, and at the head.
    """
    parts = _parts(decoder, device, dtype)
    for name, compute in parts.items():
        rows = compute(NUM_ROWS)
        if not all(torch.equal(compute(num_rows), rows[:num_rows]) for num_rows in COMPARED):
            return name
    return None


def _parts(
    decoder: Decoder, device: torch.device, dtype: torch.dtype
) -> dict[str, Callable[[int], Tensor]]:
    """Return what computes the first so many rows of each part, from the same random rows."""
    spec, generator = decoder.spec, torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(NUM_ROWS, *shape, generator=generator).to(device, dtype)

    layer: Any = decoder.layers[0]
    x, attended = random(spec.hidden_size), random(spec.num_heads, spec.head_dim)
    cos, sin = random(1, spec.head_dim), random(1, spec.head_dim)

    def project(num_rows: int) -> Tensor:
        rotation = Rotation(cos[:num_rows], sin[:num_rows])
        return torch.cat(layer.before_attention(x[:num_rows], rotation), dim=1)

    return {
        "projections": project,
        "MLP": lambda num_rows: layer.after_attention(x[:num_rows], attended[:num_rows]),
        "head": lambda num_rows: decoder.logits(x[:num_rows]),
    }
