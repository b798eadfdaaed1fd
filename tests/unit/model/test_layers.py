"""Linear layers can be packed; the norm rounds as transformers does."""

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from nanoserve.model.layer_ops import TorchOps
from nanoserve.model.layers import Linear, RMSNorm, can_prepack, gains_by_packing, prepack_linears
from nanoserve.model.native_ops import NativeOps
from tests.native_kernels import native_kernels, needs_kernels


class TiedPair(nn.Module):
    """A linear layer that shares its weight with another module, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = RMSNorm(1, 1e-5, TorchOps())
        self.tied = random_linear(has_bias=False)
        self.free = random_linear(has_bias=True)
        self.owner.weight = self.tied.weight


def random_linear(*, has_bias: bool) -> Linear:
    torch.manual_seed(1)
    linear = Linear(24, 40, has_bias, TorchOps())
    for parameter in linear.parameters():
        parameter.normal_()
    return linear


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 8, 33])
def test_a_packed_linear_gives_the_same_product(has_bias: bool, num_rows: int) -> None:
    """Packing changes the layout of the weight and no result."""
    linear = random_linear(has_bias=has_bias)
    x = torch.randn(num_rows, 24)
    expected = linear(x)

    linear.pack(is_shared=False)

    torch.testing.assert_close(linear(x), expected, atol=1e-4, rtol=0)


def test_packing_drops_the_weight_nobody_shares() -> None:
    """The packed form replaces the original, so memory is not spent twice."""
    pair = TiedPair()

    prepack_linears(pair)

    assert [name for name, _ in pair.free.named_parameters()] == ["bias"]


def test_packing_keeps_a_shared_weight_where_it_is() -> None:
    """A tied head still has the embedding's own storage, and gives the same product."""
    pair = TiedPair()
    x = torch.randn(3, 24)
    expected = pair.tied(x)

    prepack_linears(pair)

    assert pair.tied.weight is pair.owner.weight
    assert list(pair.tied.state_dict()) == ["weight"]
    torch.testing.assert_close(pair.tied(x), expected, atol=1e-4, rtol=0)


def test_float16_and_cuda_weights_cannot_be_packed() -> None:
    """Float16 and CUDA weights stay as they are; float32 on the CPU is always packed."""
    assert can_prepack(torch.device("cpu"), torch.float32)
    assert not can_prepack(torch.device("cpu"), torch.float16)
    assert not can_prepack(torch.device("cuda"), torch.float32)


@needs_kernels
def test_native_products_gain_nothing_by_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have packed weights of their own; but a CPU with a matrix unit is left to oneDNN."""
    cpu, native = torch.device("cpu"), NativeOps(native_kernels())

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert gains_by_packing(TorchOps(), cpu, torch.float32)
    assert not gains_by_packing(native, cpu, torch.float32)
    assert not gains_by_packing(TorchOps(), torch.device("cuda"), torch.float32)
    assert not gains_by_packing(native, cpu, torch.bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert gains_by_packing(native, cpu, torch.bfloat16) == can_prepack(cpu, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_norm_is_that_of_transformers(dtype: torch.dtype) -> None:
    """The mean square is taken in float32; the weight multiplies the rounded result."""
    torch.manual_seed(2)
    theirs, ours = LlamaRMSNorm(64, eps=1e-5).to(dtype), RMSNorm(64, 1e-5, TorchOps()).to(dtype)
    weight = torch.randn(64).to(dtype)
    theirs.weight.data.copy_(weight)
    ours.weight.copy_(weight)
    x = (torch.randn(5, 64) * 30).to(dtype)

    tolerance = 1e-6 if dtype == torch.float32 else 0.0
    torch.testing.assert_close(ours(x), theirs(x).detach(), rtol=tolerance, atol=tolerance)
