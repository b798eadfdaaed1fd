"""`NativeOps` equals `TorchOps`, row by row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoserve.errors import KernelError
from nanoserve.kernels.packed_weight import pack
from nanoserve.model.layer_ops import HeadNorms, TorchOps
from nanoserve.model.native_ops import NativeOps, select_ops
from nanoserve.model.rope import RotaryTable
from tests.native_kernels import native_kernels, needs_kernels
from tests.tiny_models import CPU, tiny_spec

pytestmark = needs_kernels

# float32: the order of sums; the others: sums that round to the other neighbour, twice
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
dtypes = st.sampled_from(sorted(TOLERANCES, key=str))
rows = st.sampled_from([1, 2, 7, 33, 300])
sizes = st.sampled_from([8, 24, 32, 100, 576])


def near(out: torch.Tensor, expected: torch.Tensor, num_roundings: int = 1) -> None:
    """Compare within the last bit, once for each time that the way there rounds."""
    tolerance = num_roundings * TOLERANCES[expected.dtype]
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(dtype)


@settings(max_examples=60, deadline=None)
@given(
    num_rows=rows,
    in_size=st.sampled_from([1, 7, 24, 101, 576, 2500]),
    out_size=st.sampled_from([1, 16, 31, 97, 160]),
    dtype=dtypes,
    has_bias=st.booleans(),
)
def test_a_product_equals_torch_s_in_double(
    num_rows: int, in_size: int, out_size: int, dtype: torch.dtype, has_bias: bool
) -> None:
    """Any number of rows, inputs and outputs; a row alone has bit for bit the same."""
    x, weight = random(num_rows, in_size, dtype=dtype), random(out_size, in_size, dtype=dtype)
    bias = random(out_size, dtype=dtype) if has_bias else None
    native = NativeOps(native_kernels())
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())

    out = native.linear(x, pack(weight), bias)

    tolerance = TOLERANCES[dtype]
    scale = in_size**0.5
    torch.testing.assert_close(out.double(), expected, atol=tolerance * scale, rtol=tolerance)
    assert torch.equal(native.linear(x[-1:], pack(weight), bias)[0], out[-1])


def test_a_weight_that_is_not_packed_is_refused() -> None:
    """No native product reads it, and a recorded step may call no other."""
    with pytest.raises(KernelError, match=r"packed weights, and this one, \(4, 8\), is not"):
        NativeOps(native_kernels()).linear(torch.ones(1, 8), torch.ones(4, 8), None)


@settings(max_examples=40, deadline=None)
@given(num_rows=rows, size=st.sampled_from([8, 100, 576, 5000]), dtype=dtypes)
def test_lookups_sums_and_floats_are_torch_s_bit_for_bit(
    num_rows: int, size: int, dtype: torch.dtype
) -> None:
    """Rows of a table, the sum of two tensors, and a tensor in float32, in place or new."""
    native, plain = NativeOps(native_kernels()), TorchOps()
    x, delta = random(num_rows, size, dtype=dtype), random(num_rows, size, dtype=dtype)
    index = torch.randint(0, num_rows, (37,))
    table, out = x.view(num_rows, 2, -1), torch.zeros(num_rows, size)

    assert torch.equal(native.lookup(table, index), plain.lookup(table, index))
    assert torch.equal(native.add(x, delta), x + delta)
    assert torch.equal(native.widen(x), x.float())
    assert native.widen(x, out) is out
    assert torch.equal(out, x.float())


@settings(max_examples=40, deadline=None)
@given(num_rows=rows, size=sizes, dtype=dtypes, seed=st.integers(0, 99))
def test_the_norm_equals_torch_s(num_rows: int, size: int, dtype: torch.dtype, seed: int) -> None:
    """Alone, and of a sum; the sum itself is torch's bit for bit."""
    torch.manual_seed(seed)
    x, delta = random(num_rows, size, dtype=dtype), random(num_rows, size, dtype=dtype)
    weight = random(size, dtype=dtype)
    native, plain = NativeOps(native_kernels()), TorchOps()

    near(native.rms_norm(x, weight, 1e-5), plain.rms_norm(x, weight, 1e-5), num_roundings=2)
    total, normed = native.add_rms_norm(x, delta, weight, 1e-5)
    assert torch.equal(total, x + delta)
    near(normed, plain.rms_norm(x + delta, weight, 1e-5), num_roundings=2)


@settings(max_examples=40, deadline=None)
@given(num_rows=rows, size=sizes, dtype=dtypes, scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_silu_times_up_equals_torch_s(
    num_rows: int, size: int, dtype: torch.dtype, scale: float
) -> None:
    """Small gates and gates far beyond where the exponential ends."""
    gate_up = random(num_rows, 2 * size, dtype=dtype) * scale

    near(NativeOps(native_kernels()).silu_mul(gate_up), TorchOps().silu_mul(gate_up))


@settings(max_examples=40, deadline=None)
@given(
    num_rows=rows,
    heads=st.sampled_from([(4, 2), (9, 3), (1, 1)]),
    head_dim=st.sampled_from([8, 16, 24, 64, 128]),
    dtype=dtypes,
    has_norms=st.booleans(),
)
def test_prepared_heads_equal_torch_s(
    num_rows: int, heads: tuple[int, int], head_dim: int, dtype: torch.dtype, has_norms: bool
) -> None:
    """Queries and keys are normed, if there are norms, and rotated; v is left alone."""
    split = (heads[0], heads[1], heads[1])
    fused = random(num_rows, sum(split), head_dim, dtype=dtype)
    table = RotaryTable(tiny_spec(head_dim=head_dim), 700, CPU, dtype)
    rotation = table.rotation(torch.randint(0, 700, (num_rows,)))
    norms = None
    if has_norms:
        norms = HeadNorms(random(head_dim, dtype=dtype), random(head_dim, dtype=dtype), 1e-6)
    expected = TorchOps().prepare_heads(fused.clone(), split, rotation, norms)

    prepared = NativeOps(native_kernels()).prepare_heads(fused, split, rotation, norms)

    for out, wanted in zip(prepared, expected, strict=True):
        assert out.shape == wanted.shape
        torch.testing.assert_close(
            out, wanted, atol=4 * TOLERANCES[dtype], rtol=4 * TOLERANCES[dtype]
        )
    assert torch.equal(prepared[2], expected[2])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_row_depends_on_no_other(dtype: torch.dtype) -> None:
    """A row has bit for bit the same result alone and among 300 others."""
    native = NativeOps(native_kernels())
    x, weight = random(300, 576, dtype=dtype), random(576, dtype=dtype)
    normed, activated = native.rms_norm(x, weight, 1e-5), native.silu_mul(x)

    for row in (0, 17, 299):
        alone = x[row : row + 1]
        assert torch.equal(native.rms_norm(alone, weight, 1e-5)[0], normed[row])
        assert torch.equal(native.silu_mul(alone)[0], activated[row])


def test_not_a_number_stays_one() -> None:
    """A NaN in a row is a NaN in its result, in no other row."""
    native = NativeOps(native_kernels())
    x = random(3, 64, dtype=torch.bfloat16)
    x[1, 5] = float("nan")

    is_nan = native.rms_norm(x, torch.ones(64, dtype=torch.bfloat16), 1e-5).isnan()
    assert is_nan.all(dim=1).tolist() == [False, True, False]
    assert native.silu_mul(x).isnan().sum(dim=1).tolist() == [0, 1, 0]


def test_the_compiler_gets_torch_s_operators() -> None:
    """torch.compile cannot look into native operators; without them there is no choice."""
    assert isinstance(select_ops(native_kernels(), is_compiled=False), NativeOps)
    assert isinstance(select_ops(native_kernels(), is_compiled=True), TorchOps)
    assert isinstance(select_ops(None, is_compiled=False), TorchOps)
