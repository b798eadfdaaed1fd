"""`FlashInferAttention`: what it asks the library for is attention over the paged pool."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.attention.flashinfer_backend import FlashInferAttention, load_flashinfer
from nanoserve.attention.select import select_backend
from nanoserve.attention.torch_backend import TorchAttention
from nanoserve.errors import KernelError
from nanoserve.model.decoder import Decoder
from nanoserve.runner.decode_buffers import StaticBuffers
from nanoserve.runner.decode_graphs import DecodeGraphs
from nanoserve.runner.graph_recorder import ReplayRecorder
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import ScheduledRequest, StepMode, StepPlan
from nanoserve.units import ceil_div
from tests import flashinfer_standin
from tests.tiny_models import BLOCK_SIZE, CPU, capture_plan, execute, scheduled, tiny_spec

SPEC = tiny_spec(num_heads=4, num_kv_heads=2, head_dim=64, num_layers=2)
NUM_BLOCKS = 96
TOLERANCE = 2**-6  # two roundings to 8 bits of values near 1


def backend(window: int | None = None) -> FlashInferAttention:
    spec = tiny_spec(num_heads=4, num_kv_heads=2, head_dim=64, sliding_window=window)
    return FlashInferAttention(flashinfer_standin, spec, CPU)


def random_pool() -> KVPool:
    pool = KVPool(SPEC, NUM_BLOCKS, BLOCK_SIZE, torch.bfloat16, CPU, num_sink_blocks=1)
    for layer in pool.layers:
        for side in layer:
            side.normal_()
    return pool


def requests_of(shapes: list[tuple[int, int]], seed: int) -> list[ScheduledRequest]:
    """Decodes first, each on blocks of its own in no order."""
    blocks = list(range(NUM_BLOCKS))
    random.Random(seed).shuffle(blocks)
    requests = []
    for num_tokens, num_past in sorted(shapes):
        num_blocks = ceil_div(num_tokens + num_past, BLOCK_SIZE)
        table, blocks = blocks[:num_blocks], blocks[num_blocks:]
        requests.append(scheduled([0] * num_tokens, table, num_computed_tokens=num_past))
    return requests


def qkv_of(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = (torch.randn(num_tokens, heads, 64).bfloat16() for heads in (4, 2, 2))
    return q, k, v


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from([1, 1, 2, 5, 9]), st.integers(0, 20)), min_size=1, max_size=5
    ),
    window=st.sampled_from([None, 1, 7]),
    seed=st.integers(0, 999),
)
def test_a_step_equals_torch(shapes: list[tuple[int, int]], window: int | None, seed: int) -> None:
    """Decodes and chunks, over shuffled blocks, with and without a window."""
    torch.manual_seed(seed)
    requests = requests_of(shapes, seed)
    layout = BatchLayout.from_step(StepPlan(0, tuple(requests)), BLOCK_SIZE)
    inputs = build_step_inputs(layout, CPU).attention
    qkv = qkv_of(len(layout.token_ids))
    pool = random_pool()
    ours, theirs = pool.layers[0], tuple(side.clone() for side in pool.layers[0])

    flash = backend(window)
    out = flash.attend(*qkv, ours, flash.prepare(inputs, torch.bfloat16))
    torch_attention = TorchAttention(4, 2, 64, sliding_window=window)
    prepared = torch_attention.prepare(inputs, torch.bfloat16)
    expected = torch_attention.attend(*qkv, (theirs[0], theirs[1]), prepared)

    torch.testing.assert_close(out, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert all(
        torch.equal(mine.flatten(0, 1)[list(layout.slot_mapping)], new)
        for mine, new in zip(ours, qkv[1:], strict=True)
    )


def test_a_recorded_step_is_planned_for_each_replay() -> None:
    """The same call, on the same buffers, follows rows that grow and end."""
    buffers = StaticBuffers(random_pool(), (4, 64), vocab_size=1)
    flash = backend()
    first = buffers.load(layout_of([3, 17, 40]), (4, 64))
    flash.schedule(buffers.step((4, 64)).attention, first, torch.bfloat16)
    prepared = flash.prepare_decode(buffers.step((4, 64)).attention, torch.bfloat16)

    second = buffers.load(layout_of([18, 41]), (4, 64))
    flash.schedule(buffers.step((4, 64)).attention, second, torch.bfloat16)

    (part,) = prepared.parts
    assert part.wrapper.num_plans == 2
    starts, _, last_lens = part.wrapper._buffers
    assert (starts[1:] - starts[:-1]).tolist() == [
        ceil_div(length, BLOCK_SIZE) for length in (18, 41, 1, 1)
    ]
    assert last_lens.tolist() == [(length - 1) % BLOCK_SIZE + 1 for length in (18, 41, 1, 1)]


def layout_of(lens: list[int]) -> BatchLayout:
    requests = requests_of([(1, length - 1) for length in lens], seed=1)
    return BatchLayout.from_step(StepPlan(0, tuple(requests)), BLOCK_SIZE)


def test_captured_steps_draw_eagers_tokens() -> None:
    """Through the whole ladder: padded, recorded once a shape, planned each time."""
    tokens = {mode: _generate(mode) for mode in ("eager", "captured")}

    assert tokens["eager"][0] == tokens["captured"][0]
    assert StepMode.REPLAYED in tokens["captured"][1]


def _generate(mode: str) -> tuple[list[tuple[int | None, ...]], list[StepMode]]:
    torch.manual_seed(0)
    decoder = Decoder(SPEC, FlashInferAttention(flashinfer_standin, SPEC, CPU))
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    decoder.to(torch.bfloat16)
    decoder.build_rope(CPU, torch.bfloat16, 64)
    pool = KVPool(SPEC, NUM_BLOCKS, BLOCK_SIZE, torch.bfloat16, CPU, num_sink_blocks=1)
    graphs = None
    if mode == "captured":
        graphs = DecodeGraphs(decoder, pool, capture_plan((1, 2, 4), limit=4), 64, ReplayRecorder())
    runner = ModelRunner(decoder, pool, CPU, graphs)
    known = {row: [3 + row] * (2 + 5 * row) for row in range(3)}
    results, modes = [], []
    for step in range(12):
        for row in [row for row in known if step == 4 * (row + 1)]:
            del known[row]
        parts = [
            scheduled(
                tokens if step == 0 else tokens[-1:],
                range(8 * row, 8 * row + 8),
                num_computed_tokens=0 if step == 0 else len(tokens) - 1,
                request_id=str(row),
            )
            for row, tokens in known.items()
        ]
        if not parts:
            break
        result = execute(runner, *parts)
        for row, token in zip(known, result.sampled_token_ids, strict=True):
            assert token is not None
            known[row].append(token)
        results.append(result.sampled_token_ids)
        modes.append(result.execution.mode)
    return results, modes


@pytest.mark.parametrize(
    ("head_dim", "dtype", "problem"),
    [
        (48, "bfloat16", "heads of 64, 128, 256; this model has 48"),
        (64, "float32", "--dtype is float32"),
        (64, "bfloat16", "not installed"),
    ],
)
def test_what_the_library_cannot_serve_is_said(head_dim: int, dtype: str, problem: str) -> None:
    """A head size, a dtype, and a library that is not there."""
    with pytest.raises(KernelError, match=problem):
        load_flashinfer(tiny_spec(head_dim=head_dim), dtype)


def test_it_is_chosen_where_it_was_found() -> None:
    """On a device with the library; --deterministic and the CPU's own operators come first."""
    chosen = select_backend(SPEC, CPU, flashinfer=flashinfer_standin)
    assert isinstance(chosen, FlashInferAttention)
    assert not chosen.depends_on_width
    assert chosen.arena_bytes(4, 64) == 4 * (4 * 64 + 9)

    kept = select_backend(SPEC, CPU, is_deterministic=True, flashinfer=flashinfer_standin)
    assert not isinstance(kept, FlashInferAttention)
