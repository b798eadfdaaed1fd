"""Decode steps replayed as native programs: the same logits, in the bytes that were planned."""

import pytest
import torch

from nanoserve.attention.cpu_backend import CpuAttention
from nanoserve.attention.native_result import new_result
from nanoserve.options import Quantization
from nanoserve.plan.boot_sizing import step_facts
from nanoserve.plan.capture_axes import MIXED_TOKENS
from nanoserve.runner.decode_graphs import DecodeGraphs
from nanoserve.runner.mixed_graphs import MixedGraphs
from nanoserve.runner.native_recorder import NativeRecorder, NativeReplay
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import StepExecution, StepMode, StepPlan
from nanoserve.spec.model_spec import ModelSpec
from tests.native_kernels import native_kernels, needs_kernels
from tests.recorders import WatchedNativeRecorder
from tests.tiny_models import (
    BLOCK_SIZE,
    capture_plan,
    graphs_for,
    random_decoder,
    scheduled,
    tiny_spec,
)

pytestmark = needs_kernels

PLAN = capture_plan((1, 2, 3, 8), (512,))
SPECS = {
    "small vocabulary": tiny_spec(intermediate_size=64, max_position_embeddings=400),
    "large vocabulary": tiny_spec(
        vocab_size=3001, intermediate_size=64, max_position_embeddings=400
    ),
    "wide stream": tiny_spec(hidden_size=320, intermediate_size=64, max_position_embeddings=400),
    "long heads": tiny_spec(
        num_heads=8, head_dim=64, intermediate_size=64, max_position_embeddings=400
    ),
}


def recording_graphs(
    spec: ModelSpec, quantization: Quantization = "none"
) -> tuple[DecodeGraphs, NativeRecorder]:
    """Return graphs of a random decoder."""
    recorder = WatchedNativeRecorder(native_kernels())
    decoder = random_decoder(spec, kernels=native_kernels(), quantization=quantization)
    return graphs_for(decoder, PLAN, recorder, num_blocks=800), recorder


def decodes(*context_lens: int) -> BatchLayout:
    """A step of decodes that end at the given lengths, over blocks of their own."""
    requests = tuple(
        scheduled(
            [3 + row],
            range(100 * row, 100 * row + 100),
            num_computed_tokens=context_len - 1,
            request_id=str(row),
        )
        for row, context_len in enumerate(context_lens)
    )
    return BatchLayout.from_step(StepPlan(0, requests), BLOCK_SIZE)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_a_replay_gives_the_bits_of_the_step_as_it_is(quantization: Quantization) -> None:
    """Few and long contexts, padded and not, whatever else was allocated in between."""
    graphs, _ = recording_graphs(SPECS["large vocabulary"], quantization)
    bucketed = graphs_for(graphs._model, PLAN, None, num_blocks=800)
    for shape in graphs.plan.shapes:
        assert graphs.warm(shape)
    garbage = [torch.full((size,), float("nan")) for size in range(1, 4000, 7)]

    for lens in ((5,), (300, 7, 3), (1, 1, 1, 390, 257, 256, 9), (260,)):
        replayed, expected = graphs.run(decodes(*lens)), bucketed.run(decodes(*lens))
        assert replayed is not None
        assert expected is not None
        assert replayed[1].mode is StepMode.REPLAYED
        assert torch.equal(replayed[0], expected[0])
    assert all(each.isnan().all() for each in garbage)


def test_recording_computes_nothing() -> None:
    """The logits stay as they were until the first replay."""
    graphs, _ = recording_graphs(SPECS["small vocabulary"])
    logits = graphs._buffers.step((8, 128)).logits.fill_(7.0)

    graphs.warm((8, 128))

    assert bool((logits == 7.0).all())


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("name", SPECS)
def test_the_block_takes_what_was_planned(name: str, quantization: Quantization) -> None:
    """The plan counts what is needed at once; each of a handful of results may be rounded up.

    Whichever operator is the worst, the MLP, the norm, attention or the head, and whichever
    step: the one of most decodes or the one of most tokens.
    """
    spec = SPECS[name]
    graphs, recorder = recording_graphs(spec, quantization)
    backend = CpuAttention(native_kernels(), spec)
    facts = step_facts(spec, False, backend.arena_bytes, BLOCK_SIZE, native_weights=quantization)
    width = graphs.buffer_shape.num_blocks * BLOCK_SIZE

    graphs.warm((8, width))
    MixedGraphs(graphs._model, graphs.pool, graphs.logits_buffer, width, MIXED_TOKENS, recorder)

    arena_bytes = facts.arena_bytes_of(4, step_tokens=MIXED_TOKENS, context=width)(8, 128)
    planned_bytes = arena_bytes - graphs._buffers.step((8, 128)).logits.nbytes
    assert 0 <= len(recorder._block) - planned_bytes <= 8 * 64


def test_a_larger_shape_gets_a_block_of_its_own_and_smaller_ones_keep_theirs() -> None:
    """Recorded late, the larger one last; what was recorded before still runs."""
    graphs, recorder = recording_graphs(SPECS["small vocabulary"])
    first = graphs.run(decodes(5))
    assert first is not None
    logits, small_block = first[0].clone(), recorder._block

    graphs.run(decodes(5, 390, 6))
    assert len(recorder._block) > len(small_block)

    again = graphs.run(decodes(5))
    assert again is not None
    assert again[1] == StepExecution(StepMode.REPLAYED)
    assert torch.equal(again[0], logits)


def test_a_program_is_a_few_hundred_bytes_an_operator() -> None:
    """That, times the shapes, is what recorded steps take beside the block."""
    graphs, _ = recording_graphs(SPECS["small vocabulary"])
    graphs.warm((8, 128))

    replay = graphs._replays[(8, 128)]
    assert isinstance(replay, NativeReplay)
    assert replay.program.num_bytes <= 256 * len(replay.program.ops)


def test_a_step_too_large_for_the_machine_is_an_error_of_memory() -> None:
    """It is what makes the shape run eagerly; whatever else is raised stays as it is."""
    kernels = native_kernels()
    recorder = NativeRecorder(kernels)

    def take_too_much() -> None:
        new_result(kernels, 2**50, dtype=torch.float32)

    def view_wrongly() -> None:
        torch.zeros(3).view(2)

    with pytest.raises(MemoryError, match="allocate"):
        recorder.record(take_too_much)
    with pytest.raises(RuntimeError, match="shape"):
        recorder.record(view_wrongly)


def test_the_tests_recorder_sees_what_no_replay_would_repeat() -> None:
    """An operator of torch's, and a result that the tape is not told of."""
    recorder = WatchedNativeRecorder(native_kernels())

    def compute() -> None:
        torch.zeros(3)

    def allocate() -> None:
        torch.empty(3)

    with pytest.raises(AssertionError, match="would not be replayed"):
        recorder.record(compute)
    with pytest.raises(AssertionError, match="made without new_result"):
        recorder.record(allocate)
