"""A row's bits do not depend on how many rows there are, and who says otherwise is found."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nanoserve.model.layer_ops import TorchOps
from nanoserve.model.layers import Linear, can_prepack, prepack_linears
from nanoserve.model.row_invariance import find_uneven_part, pad_single_rows
from tests.tiny_models import CPU, random_decoder, tiny_spec


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_layers_are_even_once_padded(dtype: torch.dtype) -> None:
    """Every part of a packed decoder gives a row the same bits in any company."""
    if not can_prepack(CPU, dtype):
        pytest.skip(f"oneDNN packs no {dtype} for this processor")
    decoder = random_decoder(tiny_spec(hidden_size=96, intermediate_size=192)).to(dtype)
    prepack_linears(decoder)

    pad_single_rows(decoder)

    assert find_uneven_part(decoder, CPU, dtype) is None


class UnevenLinear(Linear):
    """Rounds otherwise where there are few rows."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out * (1.0 + 1e-6) if len(x) < 9 else out


@pytest.mark.parametrize("part", ["projections", "MLP", "head"])
def test_an_uneven_part_is_named(part: str) -> None:
    """One layer whose rows depend on their number is found."""
    decoder = random_decoder(tiny_spec())
    prepack_linears(decoder)
    pad_single_rows(decoder)
    layer: Any = decoder.layers[0]
    linears = {
        "projections": layer.self_attn.qkv_proj,
        "MLP": layer.mlp.down_proj,
        "head": decoder.lm_head,
    }

    linears[part].__class__ = UnevenLinear

    assert find_uneven_part(decoder, CPU, torch.float32) == part


def test_padding_changes_no_shape() -> None:
    """One row in, one row out, of the same product."""
    linear = Linear(6, 5, has_bias=True, ops=TorchOps())
    for parameter in linear.parameters():
        parameter.normal_()
    x = torch.randn(1, 6)
    expected = linear(x)

    linear.pad_to(2)

    torch.testing.assert_close(linear(x), expected)
