"""Steps with prompts: recorded once, and the same bits as eagerly."""

import pytest
import torch
from torch import Tensor

from nanoserve.options import Quantization
from nanoserve.plan.capture_axes import MIXED_TOKENS
from nanoserve.runner.decode_graphs import DecodeGraphs
from nanoserve.runner.mixed_graphs import MixedGraphs
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.runner.native_recorder import NativeRecorder
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import ScheduledRequest, StepMode, StepPlan
from tests.native_kernels import native_kernels, needs_kernels
from tests.recorders import FullNativeRecorder, WatchedNativeRecorder
from tests.tiny_models import (
    BLOCK_SIZE,
    CPU,
    capture_plan,
    graphs_for,
    random_decoder,
    runner_for,
    scheduled,
    tiny_spec,
)

pytestmark = needs_kernels

SPEC = tiny_spec(intermediate_size=64, max_position_embeddings=400)
PLAN = capture_plan((1, 2, 8), (512,))


def decoder_of(quantization: Quantization = "none") -> object:
    torch.manual_seed(3)
    return random_decoder(SPEC, kernels=native_kernels(), quantization=quantization)


def mixed_for(
    quantization: Quantization = "none", recorder: NativeRecorder | None = None
) -> tuple[DecodeGraphs, MixedGraphs]:
    """Return both kinds of graphs of one random decoder."""
    recorder = recorder or WatchedNativeRecorder(native_kernels())
    graphs = graphs_for(decoder_of(quantization), PLAN, recorder, num_blocks=800)  # type: ignore[arg-type]
    mixed = MixedGraphs(
        graphs._model, graphs.pool, graphs.logits_buffer, 400, MIXED_TOKENS, recorder
    )
    return graphs, mixed


def piece(row: int, first: int, num_tokens: int, *, samples: bool = True) -> ScheduledRequest:
    """Tokens of a request from `first` on, over blocks of its own."""
    return scheduled(
        [3 + (7 * row + 3 * token) % 50 for token in range(first, first + num_tokens)],
        range(100 * row, 100 * row + 100),
        num_computed_tokens=first,
        request_id=str(row),
        samples=samples,
    )


def steps_of_a_long_prompt() -> list[StepPlan]:
    """Two answers run while a prompt of 300 is read, mostly in pieces of 40."""
    plans = [StepPlan(0, (piece(0, 0, 5), piece(1, 0, 9)))]
    pieces = [40] * 7 + [20]
    first = 0
    for index, length in enumerate(pieces):
        decodes = (piece(0, 5 + index, 1), piece(1, 9 + index, 1))
        is_last = index == len(pieces) - 1
        chunk = piece(2, first, length, samples=is_last)
        plans.append(StepPlan(index + 1, (*decodes, chunk)))
        first += length
    return plans


def layout_of(plan: StepPlan) -> BatchLayout:
    return BatchLayout.from_step(plan, BLOCK_SIZE)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_tokens_and_the_pool_are_those_of_eager_steps(quantization: Quantization) -> None:
    """Whatever the context grows to, and whether a chunk samples or not."""
    graphs, mixed = mixed_for(quantization)
    runner = ModelRunner(graphs._model, graphs.pool, CPU, graphs, native_kernels(), mixed)
    eager = runner_for(decoder_of(quantization), num_blocks=800)  # type: ignore[arg-type]

    modes = []
    for plan in steps_of_a_long_prompt():
        found, expected = runner.execute(plan), eager.execute(plan)
        assert found.sampled_token_ids == expected.sampled_token_ids
        modes.append(found.execution.mode)

    assert set(modes) == {StepMode.REPLAYED}
    for ours, theirs in zip(graphs.pool.layers, eager._pool.layers, strict=True):
        for side, other in zip(ours, theirs, strict=True):
            assert torch.equal(used_blocks(side), used_blocks(other))


def used_blocks(side: Tensor) -> Tensor:
    return torch.cat([side[100 * row : 100 * row + 19] for row in range(3)])


def test_wanted_logits_are_those_of_the_requests_that_sample() -> None:
    """One row for each, in the plan's order; none where nothing samples."""
    graphs, mixed = mixed_for()
    plan = StepPlan(0, (piece(0, 0, 6, samples=False), piece(1, 0, 4), piece(2, 0, 3)))
    layout = layout_of(plan)
    logits = mixed.run(layout)
    assert logits is not None
    assert logits.shape == (2, SPEC.vocab_size)
    alone = layout_of(StepPlan(0, (piece(1, 0, 4),)))
    expected = logits.clone()
    found = mixed.run(alone)
    assert found is not None
    assert torch.equal(found[0], expected[0])

    silent = layout_of(StepPlan(0, (piece(0, 0, 6, samples=False),)))
    nothing = mixed.run(silent)
    assert nothing is not None
    assert len(nothing) == 0
    assert graphs.logits_buffer is mixed._logits


def test_what_is_not_recorded() -> None:
    """Decodes alone, scored prompts, and steps of too many tokens or requests."""
    _, mixed = mixed_for()
    scored = scheduled([3, 4, 5], range(4), scored_token_ids=[4, 5])
    plans = (
        StepPlan(0, (piece(0, 4, 1), piece(1, 7, 1))),
        StepPlan(0, (scored,)),
        StepPlan(0, (piece(0, 0, MIXED_TOKENS // 2), piece(1, 0, MIXED_TOKENS // 2 + 1))),
        StepPlan(0, tuple(scheduled([3, 4], [row], request_id=str(row)) for row in range(9))),
    )

    for plan in plans:
        assert mixed.run(layout_of(plan)) is None


def test_steps_of_all_sizes_run_what_was_recorded_first() -> None:
    """A prompt of any length, alone or beside others, costs no recording when it comes."""
    _, mixed = mixed_for()
    replay = mixed._replay
    assert replay is not None
    eager = runner_for(decoder_of(), num_blocks=800)  # type: ignore[arg-type]

    lengths = [(2,), (61,), (3, 50), (200,), *[(1 + count,) * count for count in range(1, 9)], (2,)]
    for prompts in lengths:
        plan = StepPlan(0, tuple(piece(row, 0, length) for row, length in enumerate(prompts)))
        logits = mixed.run(layout_of(plan))
        assert logits is not None
        found = tuple(logits.argmax(dim=-1).tolist())
        assert found == eager.execute(plan).sampled_token_ids

    assert mixed._replay is replay


def test_without_memory_such_steps_stay_eager(caplog: pytest.LogCaptureFixture) -> None:
    """Said once, at the start."""
    _, mixed = mixed_for(recorder=FullNativeRecorder(native_kernels()))

    assert mixed.run(layout_of(StepPlan(0, (piece(0, 0, 30),)))) is None
    assert mixed.run(layout_of(StepPlan(0, (piece(0, 0, 2),)))) is None
    assert len(caplog.records) == 1
    assert "they run eagerly" in caplog.text
