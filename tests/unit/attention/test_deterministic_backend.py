"""`DeterministicAttention` is attention, and gives a token the same bits in any company."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.attention.deterministic_backend import DeterministicAttention
from nanoserve.attention.select import select_backend
from nanoserve.errors import OptionError
from nanoserve.runner.decode_buffers import StaticBuffers
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import ScheduledRequest, StepPlan
from tests.tiny_models import BLOCK_SIZE, CPU, scheduled, tiny_spec
from tests.unit.attention.test_torch_backend import (
    attend,
    naive_attention,
    random_pool,
    random_qkv,
    requests_of,
    step_shapes,
)

NUM_HEADS, NUM_KV_HEADS = 4, 2
LENGTH = 300  # tokens of the long request: three key tiles, five query tiles


def backend_for(
    window: int | None = None, heads: tuple[int, int] = (4, 2)
) -> DeterministicAttention:
    spec = tiny_spec(num_heads=heads[0], num_kv_heads=heads[1], sliding_window=window)
    return DeterministicAttention(spec)


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

    out = attend(backend_for(window, heads), requests, qkv, pool)

    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)


def long_request(start: int, end: int) -> ScheduledRequest:
    """Return tokens `start` to `end` of the long request."""
    table = range(20, 20 + LENGTH // BLOCK_SIZE)
    return scheduled([0] * (end - start), table, num_computed_tokens=start, request_id="long")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 140])
def test_a_chunk_has_the_bits_of_the_whole(dtype: torch.dtype, window: int | None) -> None:
    """However a prompt is cut, down to single tokens, its attention is the same bit for bit."""
    torch.manual_seed(2)
    qkv = tuple(part.to(dtype) for part in random_qkv(LENGTH, NUM_HEADS, NUM_KV_HEADS))
    pool = tuple(torch.zeros(100, BLOCK_SIZE, NUM_KV_HEADS, 8, dtype=dtype) for _ in range(2))
    whole = attend(backend_for(window), [long_request(0, LENGTH)], qkv, (pool[0], pool[1]))

    for start, end in ((0, 1), (1, 64), (64, 200), (200, 201), (201, 299), (299, 300)):
        chunk = tuple(part[start:end] for part in qkv)
        out = attend(backend_for(window), [long_request(start, end)], chunk, (pool[0], pool[1]))

        assert torch.equal(out, whole[start:end]), (start, end)


@settings(max_examples=25, deadline=None)
@given(shapes=step_shapes, seed=st.integers(0, 999))
def test_a_token_has_the_bits_it_has_alone(shapes: list[tuple[int, int]], seed: int) -> None:
    """Nobody else in the step changes a bit of a request's attention."""
    torch.manual_seed(seed)
    requests = requests_of(shapes, seed)
    num_tokens = sum(request.num_scheduled_tokens for request in requests)
    qkv, pool = random_qkv(num_tokens, NUM_HEADS, NUM_KV_HEADS), random_pool(NUM_KV_HEADS)
    together = attend(backend_for(), requests, qkv, pool)

    row = 0
    for request in requests:
        rows = slice(row, row := row + request.num_scheduled_tokens)
        alone = attend(backend_for(), [request], tuple(part[rows] for part in qkv), pool)
        assert torch.equal(alone, together[rows])


@pytest.mark.parametrize("width", [128, 512])
def test_a_padded_decode_has_the_bits_of_an_eager_one(width: int) -> None:
    """Padding rows and a wider table change no bit."""
    torch.manual_seed(4)
    spec = tiny_spec()
    pool = KVPool(spec, 200, BLOCK_SIZE, torch.float32, CPU, num_sink_blocks=1)
    for layer in pool.layers:
        for part in layer:
            part.normal_()
    requests = [
        scheduled([0], range(40), num_computed_tokens=117, request_id="a"),
        scheduled([0], range(50, 60), num_computed_tokens=9, request_id="b"),
    ]
    layout = BatchLayout.from_step(StepPlan(0, tuple(requests)), BLOCK_SIZE)
    qkv = random_qkv(4, NUM_HEADS, NUM_KV_HEADS)
    buffers = StaticBuffers(pool, (4, width), spec.vocab_size)
    buffers.load(layout, (4, width))
    inputs = buffers.step((4, width)).attention
    backend, kv = backend_for(), pool.layers[0]

    q, k, v = qkv
    padded = backend.attend(q, k, v, kv, backend.prepare_decode(inputs, torch.float32))
    eager = attend(backend, requests, tuple(part[:2] for part in qkv), kv)

    assert torch.equal(padded[:2], eager)


def test_arena_bytes_are_those_of_a_gathering_backend() -> None:
    """It copies and scores as plain torch does, and has the same arena."""
    ours, plain = backend_for(), select_backend(tiny_spec(), CPU)

    assert ours.arena_bytes(8, 256) == plain.arena_bytes(8, 256)
    assert ours.depends_on_width


def test_the_option_selects_it_on_the_cpu_alone() -> None:
    """A device that cannot keep the promise refuses to make it."""
    assert isinstance(
        select_backend(tiny_spec(), CPU, is_deterministic=True), DeterministicAttention
    )
    with pytest.raises(OptionError, match="--deterministic is kept on the CPU alone"):
        select_backend(tiny_spec(), torch.device("cuda"), is_deterministic=True)
