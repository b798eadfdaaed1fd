"""What native attention writes to pools of int8 and fp8, read back by plain torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoserve.attention.cpu_backend import CpuAttention
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import StepPlan
from tests.kv_codec import KV_DTYPES, MAX_FP8, decode
from tests.native_kernels import native_kernels, needs_kernels
from tests.tiny_models import CPU, scheduled, tiny_spec

pytestmark = needs_kernels

BLOCK_SIZE = 4
LEAST_FP8 = 2.0**-9  # of e4m3; numbers that small lie this far apart


def stored(heads: Tensor, kv_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return what attention to a chunk left in a pool of K and V, and what it attended to.

    Args:
        heads: [T, K, D], both K and V.
        kv_dtype: The pool's.
    """
    num_tokens, num_kv_heads, head_dim = heads.shape
    spec = tiny_spec(num_heads=num_kv_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    pool = KVPool(spec, num_blocks, BLOCK_SIZE, kv_dtype, CPU)
    request = scheduled([0] * num_tokens, list(range(num_blocks)))
    inputs = build_step_inputs(BatchLayout.from_step(StepPlan(0, (request,)), BLOCK_SIZE), CPU)
    backend = CpuAttention(native_kernels(), spec)
    prepared = backend.prepare(inputs.attention, heads.dtype)
    out = backend.attend(heads, heads, heads, pool.layers[0], prepared)
    shape = torch.Size((num_blocks, BLOCK_SIZE, num_kv_heads, head_dim))
    keys, values = (decode(side, shape).flatten(0, 1)[:num_tokens] for side in pool.layers[0])
    assert torch.equal(keys.nan_to_num(), values.nan_to_num())
    return keys, out


heads_of = st.builds(
    lambda seed, dtype, head_dim, magnitude: (
        magnitude * torch.randn(9, 2, head_dim, generator=torch.Generator().manual_seed(seed))
    ).to(dtype),
    seed=st.integers(0, 9999),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    head_dim=st.sampled_from([8, 40, 64, 72, 128]),
    magnitude=st.sampled_from([1e-4, 0.02, 1.0, 50.0]),
)


@settings(max_examples=60, deadline=None)
@given(heads=heads_of)
def test_int8_is_off_by_half_a_step_at_most(heads: Tensor) -> None:
    """A step is a 127th of the largest magnitude of the head."""
    kept, _ = stored(heads, torch.int8)

    steps = heads.float().abs().amax(-1, keepdim=True) / 127
    assert ((kept - heads.float()).abs() <= 0.5001 * steps).all()


@settings(max_examples=60, deadline=None)
@given(heads=heads_of)
def test_fp8_is_the_nearest_of_its_numbers(heads: Tensor) -> None:
    """Bit for bit what torch rounds to, and off by a 16th at most, or half of the least number."""
    kept, _ = stored(heads, torch.float8_e4m3fn)

    wide = heads.float().clamp(-MAX_FP8, MAX_FP8)
    assert torch.equal(kept, wide.to(torch.float8_e4m3fn).float())
    assert ((kept - wide).abs() <= (wide.abs() / 16).clamp(min=LEAST_FP8 / 2)).all()


def test_fp8_ends_at_448() -> None:
    """What is beyond it, infinities too, is stored as 448."""
    heads = torch.zeros(1, 1, 8)
    heads[0, 0, :6] = torch.tensor([448.0, 465.0, 1e9, -500.0, float("inf"), -float("inf")])

    kept, _ = stored(heads, torch.float8_e4m3fn)

    assert kept[0, 0].tolist() == [448.0, 448.0, 448.0, -448.0, 448.0, -448.0, 0.0, 0.0]


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_every_code_of_fp8_is_kept(compute: torch.dtype) -> None:
    """The 253 numbers come back as they went in, subnormal ones and zeros among them."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = codes[codes.isfinite()]
    heads = torch.zeros(1, 1, 256, dtype=compute)
    heads[0, 0, : len(numbers)] = numbers.to(compute)

    kept, out = stored(heads, torch.float8_e4m3fn)

    assert torch.equal(kept, heads.float())
    assert torch.equal(out, heads)  # one key has all the weight


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_a_number_that_is_none_is_not_hidden(kv_dtype: torch.dtype, compute: torch.dtype) -> None:
    """NaN in a token's K and V is NaN in what attends to it, and in no other head."""
    heads = torch.randn(6, 2, 64).to(compute)
    heads[3, 1, 7] = float("nan")

    _, out = stored(heads, kv_dtype)

    assert out[:, 0].isfinite().all()
    assert out[3:, 1].isnan().any(-1).all()


def test_zeros_are_kept_as_int8() -> None:
    """A head without magnitude has a scale of 0, not of nothing divided by nothing."""
    kept, out = stored(torch.zeros(3, 1, 16), torch.int8)

    assert not kept.any()
    assert not out.any()
