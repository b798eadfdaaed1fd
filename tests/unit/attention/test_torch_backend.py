"""`TorchAttention` equals attention written out token by token."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanoserve.attention.backend import AttentionBackend
from nanoserve.attention.select import select_backend
from nanoserve.attention.torch_backend import TorchAttention
from nanoserve.runner.decode_buffers import StaticBuffers
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import ScheduledRequest, StepPlan
from tests.tiny_models import BLOCK_SIZE, CPU, scheduled, tiny_spec

NUM_BLOCKS = 80
KV = tuple[Tensor, Tensor]

# (num_scheduled_tokens, num_computed_tokens) of each request
step_shapes = st.lists(
    st.tuples(st.sampled_from([1, 1, 2, 5, 9]), st.integers(0, 13)), min_size=1, max_size=5
)


def requests_of(shapes: list[tuple[int, int]], seed: int) -> list[ScheduledRequest]:
    blocks = list(range(NUM_BLOCKS))
    random.Random(seed).shuffle(blocks)
    ordered = sorted(shapes, key=lambda shape: shape[0] != 1)
    return [
        scheduled(
            [0] * num_tokens,
            blocks[index * 8 : index * 8 + 8],
            num_computed_tokens=num_computed,
            request_id=str(index),
        )
        for index, (num_tokens, num_computed) in enumerate(ordered)
    ]


def attend(
    backend: AttentionBackend, requests: list[ScheduledRequest], qkv: tuple[Tensor, ...], pool: KV
) -> Tensor:
    layout = BatchLayout.from_step(StepPlan(0, tuple(requests)), BLOCK_SIZE)
    inputs = build_step_inputs(layout, CPU).attention
    q, k, v = qkv
    return backend.attend(q, k, v, pool, backend.prepare(inputs, q.dtype))


def naive_attention(
    requests: list[ScheduledRequest], qkv: tuple[Tensor, ...], past: KV, window: int | None
) -> Tensor:
    """Attend token by token, head by head, over `past`, slots [N * S, K, D]."""
    q, k, v = qkv
    out, row = torch.zeros_like(q), 0
    group = q.shape[1] // k.shape[1]
    for request in requests:
        slots = [b * BLOCK_SIZE + s for b in request.block_table for s in range(BLOCK_SIZE)]
        slots = slots[: request.num_computed_tokens]
        rows = slice(row, row + request.num_scheduled_tokens)
        keys, values = torch.cat((past[0][slots], k[rows])), torch.cat((past[1][slots], v[rows]))
        for position in range(request.num_computed_tokens, request.context_len):
            first = 0 if window is None else max(0, position + 1 - window)
            for head in range(q.shape[1]):
                seen = (slice(first, position + 1), head // group)
                scores = keys[seen] @ q[row, head] / q.shape[-1] ** 0.5
                out[row, head] = scores.softmax(0) @ values[seen]
            row += 1
    return out


def random_qkv(num_tokens: int, num_heads: int, num_kv_heads: int) -> tuple[Tensor, ...]:
    return tuple(
        torch.randn(num_tokens, heads, 8) for heads in (num_heads, num_kv_heads, num_kv_heads)
    )


def random_pool(num_kv_heads: int) -> KV:
    shape = (NUM_BLOCKS, BLOCK_SIZE, num_kv_heads, 8)
    return torch.randn(shape), torch.randn(shape)


@settings(max_examples=25, deadline=None)
@given(
    shapes=step_shapes,
    heads=st.sampled_from([(4, 2), (3, 3), (4, 1)]),
    window=st.sampled_from([None, 1, 6]),
    seed=st.integers(0, 999),
)
def test_a_ragged_step_equals_attention_token_by_token(
    shapes: list[tuple[int, int]], heads: tuple[int, int], window: int | None, seed: int
) -> None:
    """Decodes and chunks over shuffled blocks attend as a loop over tokens would."""
    torch.manual_seed(seed)
    requests = requests_of(shapes, seed)
    num_tokens = sum(request.num_scheduled_tokens for request in requests)
    qkv, pool = random_qkv(num_tokens, *heads), random_pool(heads[1])
    past = (pool[0].flatten(0, 1).clone(), pool[1].flatten(0, 1).clone())
    expected = naive_attention(requests, qkv, past, window)

    out = attend(TorchAttention(*heads, 8, sliding_window=window), requests, qkv, pool)

    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)


def test_a_long_context_widens_no_short_one() -> None:
    """Decodes far apart in length are computed apart, with the result of each alone."""
    torch.manual_seed(6)
    lengths = [3, 290, 40, 5]
    blocks = iter(range(NUM_BLOCKS + 20))
    requests = [
        scheduled(
            [0],
            [next(blocks) for _ in range(length // BLOCK_SIZE + 1)],
            num_computed_tokens=length,
            request_id=str(length),
        )
        for length in lengths
    ]
    qkv = random_qkv(4, 4, 2)
    pool = (torch.randn(100, BLOCK_SIZE, 2, 8), torch.randn(100, BLOCK_SIZE, 2, 8))
    past = (pool[0].flatten(0, 1).clone(), pool[1].flatten(0, 1).clone())
    layout = BatchLayout.from_step(StepPlan(0, tuple(requests)), BLOCK_SIZE)
    backend = TorchAttention(4, 2, 8)

    prepared = backend.prepare(build_step_inputs(layout, CPU).attention, torch.float32)
    out = backend.attend(qkv[0], qkv[1], qkv[2], pool, prepared)

    rows = [torch.arange(4)[gather.rows].tolist() for gather in prepared.decodes]
    assert rows == [[0, 3, 2], [1]]
    torch.testing.assert_close(
        out, naive_attention(requests, qkv, past, None), atol=1e-5, rtol=1e-4
    )


@settings(max_examples=25, deadline=None)
@given(
    past_lens=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    window=st.sampled_from([None, 1, 6]),
    num_padding_rows=st.integers(0, 3),
    seed=st.integers(0, 999),
)
def test_a_padded_step_equals_attention_token_by_token(
    past_lens: list[int], window: int | None, num_padding_rows: int, seed: int
) -> None:
    """Rows read their own blocks up to their context, however wide and long the shape is."""
    torch.manual_seed(seed)
    requests = requests_of([(1, past_len) for past_len in past_lens], seed)
    num_rows = len(requests)
    shape = (num_rows + num_padding_rows, 48)
    kv_pool = KVPool(tiny_spec(num_layers=1), NUM_BLOCKS, BLOCK_SIZE, torch.float32, CPU, 1)
    (pool,) = kv_pool.layers
    for side in pool:
        side.normal_()
    past = (pool[0].flatten(0, 1).clone(), pool[1].flatten(0, 1).clone())
    qkv = random_qkv(shape[0], 4, 2)
    buffers = StaticBuffers(kv_pool, shape, vocab_size=1)
    buffers.load(BatchLayout.from_step(StepPlan(0, tuple(requests)), BLOCK_SIZE), shape)
    backend = TorchAttention(4, 2, 8, sliding_window=window)

    prepared = backend.prepare_decode(buffers.step(shape).attention, torch.float32)
    out = backend.attend(qkv[0], qkv[1], qkv[2], pool, prepared)[:num_rows]

    expected = naive_attention(requests, tuple(part[:num_rows] for part in qkv), past, window)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)


def test_the_arena_holds_scores_and_copies_in_float32() -> None:
    """Eight rows of 2,048 tokens of Llama-3.2-1B: 2 MiB of scores, 64 of K and V, a mask."""
    backend = TorchAttention(32, 8, 64)

    assert backend.arena_bytes(8, 2048) == 4 * 8 * 2048 * (32 + 2 * 512 + 1)
    assert backend.depends_on_width


def test_new_keys_and_values_land_in_their_slots() -> None:
    """K and V of a step are stored where the slot mapping says, and nowhere else."""
    requests = [scheduled([0], [3, 1], num_computed_tokens=5)]
    pool = random_pool(2)
    before = [side.clone() for side in pool]
    qkv = random_qkv(1, 4, 2)

    attend(TorchAttention(4, 2, 8), requests, qkv, pool)

    for side, old, new in zip(pool, before, qkv[1:], strict=True):
        old[1, 1] = new[0]
        assert torch.equal(side, old)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30])
def test_what_former_owners_left_has_no_influence(garbage: float) -> None:
    """A pool full of NaN or infinity gives bit for bit what a zeroed pool gives."""
    torch.manual_seed(3)
    backend = TorchAttention(4, 2, 8)
    outputs = []
    qkv_by_step = [random_qkv(count, 4, 2) for count in (9, 6, 2, 2)]
    for fill in (0.0, garbage):
        pool = tuple(torch.full((NUM_BLOCKS, BLOCK_SIZE, 2, 8), fill) for _ in range(2))
        done = {"0": 0, "1": 0}
        steps = []
        for lengths, qkv in zip(((7, 2), (5, 1), (1, 1), (1, 1)), qkv_by_step, strict=True):
            requests = [
                scheduled(
                    [0] * length,
                    range(20 * index, 20 * index + 8),
                    num_computed_tokens=done[str(index)],
                    request_id=str(index),
                )
                for index, length in enumerate(lengths)
            ]
            done = {request.request_id: request.context_len for request in requests}
            steps.append(attend(backend, requests, qkv, (pool[0], pool[1])))
        outputs.append(torch.cat(steps))

    assert torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_in_its_dtype(dtype: torch.dtype) -> None:
    """Output has the dtype of the queries and is near the float32 result."""
    torch.manual_seed(4)
    requests = requests_of([(1, 9), (1, 2), (5, 0)], seed=4)
    qkv, pool = random_qkv(7, 4, 2), random_pool(2)
    half_pool = (pool[0].to(dtype), pool[1].to(dtype))
    backend = TorchAttention(4, 2, 8)
    expected = attend(backend, requests, qkv, pool)

    out = attend(backend, requests, tuple(part.to(dtype) for part in qkv), half_pool)

    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, atol=3e-2, rtol=3e-2)


def test_the_selected_backend_serves_the_spec() -> None:
    """`select_backend` carries the window of the spec over to the backend."""
    torch.manual_seed(5)
    requests = requests_of([(5, 3)], seed=5)
    qkv, pool = random_qkv(5, 4, 2), random_pool(2)
    expected = attend(TorchAttention(4, 2, 8, 2), requests, qkv, pool)

    backend = select_backend(tiny_spec(sliding_window=2), CPU)

    assert isinstance(backend, TorchAttention)
    torch.testing.assert_close(attend(backend, requests, qkv, pool), expected)
