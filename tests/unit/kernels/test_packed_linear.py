"""Products of packed weights, and their rows, are what the weights stand for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoserve.errors import KernelError
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.packed_args import embedding_args, packed_linear_args
from nanoserve.kernels.packed_weight import (
    PackedWeight,
    activation_group_size,
    gather_rows,
    quantize_int8,
    scratch_bytes,
    unpack,
)
from nanoserve.kernels.panel_layout import WeightFormat
from tests.native_kernels import kernels_for, native_kernels, needs_kernels
from tests.packed_weights import (
    DENSE,
    FORMATS,
    quantized_activations,
    random_packed,
    undecided_activations,
)

pytestmark = needs_kernels

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
GROUPS = ((1, 5), (1, 24), (1, 97), (1, 2500), (2, 32), (9, 64), (3, 192), (1, 576), (2, 160))


def linear(
    kernels: KernelLibrary,
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    num_threads: int = 2,
) -> Tensor:
    out = torch.full((len(x), weight.out_size), torch.nan, dtype=x.dtype)
    scratch = torch.empty(scratch_bytes(weight, len(x)), dtype=torch.uint8)
    kernels.run(packed_linear_args(x, weight, bias, out, scratch), num_threads)
    return out


def check_product(
    kernels: KernelLibrary, weight: PackedWeight, x: Tensor, bias: Tensor | None
) -> Tensor:
    """Compare with the product in double of what is left of both sides."""
    seen, undecided = x.double(), torch.zeros(len(x), weight.in_size, dtype=torch.float64)
    if weight.dtype is None:
        group_size = activation_group_size(weight.group_size)
        seen = quantized_activations(x, group_size)
        undecided = undecided_activations(x, group_size)
    values = unpack(weight).double()
    expected = seen @ values.T + (0 if bias is None else bias.double())

    out = linear(kernels, x, weight, bias)

    tolerance = TOLERANCES[x.dtype]
    bound = tolerance * (weight.in_size**0.5 + expected.abs()) + undecided @ values.abs().T
    excess = float(((out.double() - expected).abs() - bound).max())
    assert excess <= 0, f"off by {excess:.3g} more than rounding allows"
    return out


def check_rows(
    kernels: KernelLibrary, weight: PackedWeight, ids: Tensor, dtype: torch.dtype
) -> None:
    out = torch.empty(len(ids), weight.in_size, dtype=dtype)

    kernels.run(embedding_args(ids, weight, out), 2)

    assert torch.equal(out, gather_rows(weight, ids).to(dtype))


@settings(max_examples=120, deadline=None)
@given(
    format=st.sampled_from(FORMATS),
    dtype=st.sampled_from(DENSE),
    num_rows=st.sampled_from([1, 2, 5, 7, 13, 33, 300]),
    groups=st.sampled_from(GROUPS),
    out_size=st.sampled_from([1, 16, 31, 32, 97, 160]),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_product_is_of_what_the_weight_stands_for(
    format: WeightFormat,
    dtype: WeightFormat,
    num_rows: int,
    groups: tuple[int, int],
    out_size: int,
    has_bias: bool,
    seed: int,
) -> None:
    """Any format and shape; a row alone, or on one thread, has bit for bit the same."""
    torch.manual_seed(seed)
    num_groups, group_size = groups
    in_size = num_groups * group_size
    weight = random_packed(format, out_size, in_size, group_size)
    torch_dtype = weight.dtype or getattr(torch, dtype)
    x = torch.randn(num_rows, in_size).to(torch_dtype)
    bias = torch.randn(out_size).to(torch_dtype) if has_bias else None

    out = check_product(native_kernels(), weight, x, bias)

    assert torch.equal(linear(native_kernels(), x[-1:], weight, bias)[0], out[-1])
    assert torch.equal(linear(native_kernels(), x, weight, bias, num_threads=1), out)
    assert torch.equal(linear(native_kernels(), x, weight, bias, num_threads=3), out)


@settings(max_examples=40, deadline=None)
@given(
    format=st.sampled_from(FORMATS),
    dtype=st.sampled_from(DENSE),
    groups=st.sampled_from(GROUPS),
    ids=st.lists(st.integers(0, 99), min_size=1, max_size=40),
)
def test_rows_are_what_the_weight_stands_for(
    format: WeightFormat, dtype: WeightFormat, groups: tuple[int, int], ids: list[int]
) -> None:
    """Rounded once, to the activations' dtype."""
    num_groups, group_size = groups
    weight = random_packed(format, 100, num_groups * group_size, group_size)

    check_rows(native_kernels(), weight, torch.tensor(ids), weight.dtype or getattr(torch, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["x86-64", "x86-64-v3", "skylake-avx512"])
def test_other_instructions_give_the_same(architecture: str) -> None:
    """Without products of bytes or bfloat16, or in narrower vectors, the sources still agree."""
    kernels = kernels_for(architecture)

    for format in FORMATS:
        for num_groups, group_size in GROUPS:
            weight = random_packed(format, 97, num_groups * group_size, group_size)
            x = torch.randn(13, weight.in_size).to(weight.dtype or torch.bfloat16)

            out = check_product(kernels, weight, x, None)

            assert torch.equal(linear(kernels, x[-1:], weight)[0], out[-1])
            check_rows(kernels, weight, torch.tensor([96, 0]), x.dtype)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_a_number_stays_one(format: WeightFormat, bad: float) -> None:
    """What is not finite in a row spoils all of its result and no other row's."""
    weight = random_packed(format, 40, 64, 32 if format in ("int8", "int4") else 64)
    x = torch.randn(3, 64).to(weight.dtype or torch.bfloat16)
    x[1, 40] = bad

    is_finite = linear(native_kernels(), x, weight).isfinite()

    assert is_finite.all(dim=1).tolist() == [True, False, True]
    assert not is_finite[1].any()


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-28, 1e30])
def test_activations_of_any_size_are_quantized(scale: float) -> None:
    """Neither tiny nor large rows overflow on the way; what is below 1e-30 becomes zeros."""
    weight = quantize_int8(torch.eye(64), 64)
    x = torch.randn(2, 64) * scale

    out = linear(native_kernels(), x, weight)

    torch.testing.assert_close(out, x, atol=float(x.abs().max()) / 127 + 1e-30, rtol=1e-2)


def test_another_dtype_than_the_activations_is_refused() -> None:
    """A dense weight is not converted on the way."""
    weight = random_packed("float32", 40, 64, 64)
    x = torch.randn(1, 64).bfloat16()

    with pytest.raises(KernelError, match=r"float32 was given activations of torch\.bfloat16"):
        linear(native_kernels(), x, weight)
