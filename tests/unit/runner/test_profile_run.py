"""The profile run is the scheduler's largest step, and its scratch pool is not in its figure."""

from collections.abc import Callable

from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.runner.profile_run import (
    StepLimits,
    build_largest_step,
    measure_peak,
    warm_libraries,
)
from nanoserve.sched.batch_layout import BatchLayout
from tests.tiny_models import random_decoder, tiny_spec

LIMITS = StepLimits(
    max_num_seqs=4, max_num_batched_tokens=20, max_model_len=64, block_size=8, vocab_size=97
)


class RecordingProbe:
    """A probe that runs what it is given and answers with a number."""

    def __init__(self, peak_bytes: int | None = 7) -> None:
        self.peak_bytes = peak_bytes
        self.results: list[object] = []

    def read(self) -> MemoryReading:
        return MemoryReading(0, 0)

    def settle(self) -> None:
        pass

    def count_as_own(self, mapped_bytes: int) -> None: ...

    def peak_delta(self, run: Callable[[], object]) -> int | None:
        self.results.append(run())
        return self.peak_bytes


def test_step_spends_the_budget_and_the_slots_at_the_end_of_the_context() -> None:
    """Every slot is taken, every token of the budget, and each request ends at the limit."""
    step = build_largest_step(LIMITS)

    assert step.num_tokens == LIMITS.max_num_batched_tokens
    assert [request.num_scheduled_tokens for request in step.scheduled] == [1, 1, 1, 17]
    assert {request.context_len for request in step.scheduled} == {LIMITS.max_model_len}
    assert all(request.samples for request in step.scheduled)
    assert len(step.scheduled[-1].scored_token_ids) == 16


def test_budget_beyond_the_context_is_one_whole_prompt() -> None:
    """A chunk cannot be longer than a request."""
    limits = StepLimits(1, 512, 64, 8, 97)

    assert [request.num_scheduled_tokens for request in build_largest_step(limits).scheduled] == [
        64
    ]


def test_step_reads_the_blocks_of_one_request() -> None:
    """The scratch pool is one request's: the layout names no block beyond it."""
    layout = BatchLayout.from_step(build_largest_step(LIMITS), LIMITS.block_size)

    assert max(max(table) for table in layout.block_tables) == LIMITS.num_blocks - 1
    assert max(layout.slot_mapping) < LIMITS.num_blocks * LIMITS.block_size


def test_step_is_run_once_under_the_probe() -> None:
    """The probe's figure is returned as it is, and every request drew a token."""
    probe = RecordingProbe()

    assert measure_peak(random_decoder(tiny_spec()), LIMITS, probe) == 7
    (result,) = probe.results
    assert None not in result.sampled_token_ids  # type: ignore[attr-defined]


def test_peak_that_nobody_can_measure_is_none() -> None:
    """It is not taken for zero."""
    assert measure_peak(random_decoder(tiny_spec()), LIMITS, RecordingProbe(None)) is None


def test_warming_leaves_the_model_as_it_was() -> None:
    """The step's scratch pool is gone, and the next one measures as before."""
    decoder = random_decoder(tiny_spec())

    warm_libraries(decoder, LIMITS)

    assert measure_peak(decoder, LIMITS, RecordingProbe()) == 7
