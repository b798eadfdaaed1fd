"""Steps by how they ran, and the window over the last decode steps."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nanoserve.engine.step_counts import StepCounter
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepExecution, StepMode, StepPlan

EAGER, LATE, REPLAYED = StepMode.EAGER, StepMode.LATE, StepMode.REPLAYED


def plan(*lengths: int) -> StepPlan:
    """Return a step with a request for each number of tokens."""
    sampling = SamplingParams()
    requests = [
        ScheduledRequest(f"r{i}", (1,) * length, 0, (0,), sampling, seed=0, samples=True)
        for i, length in enumerate(lengths)
    ]
    return StepPlan(0, tuple(requests))


DECODE = plan(1, 1)


def test_prefill_is_no_fall_through() -> None:
    """A step with a chunk runs eager by nature and is counted apart from the decode steps."""
    counter = StepCounter()
    counter.record(plan(5, 7), StepExecution(EAGER))
    counter.record(plan(1, 7), StepExecution(EAGER))
    counter.record(DECODE, StepExecution(REPLAYED))

    counts = counter.snapshot()

    assert (counts.num_steps, counts.num_prefill_steps) == (3, 2)
    assert counts.num_decode_steps == dict.fromkeys(StepMode, 0) | {REPLAYED: 1}
    assert (counts.window.num_steps, counts.window.num_eager) == (1, 0)


def test_padding_and_evictions_add_up() -> None:
    """Both are summed over all steps."""
    counter = StepCounter()
    counter.record(DECODE, StepExecution(LATE, padded_rows=2, num_evicted=1))
    counter.record(DECODE, StepExecution(REPLAYED, padded_rows=3))

    counts = counter.snapshot()

    assert (counts.padded_rows, counts.num_evicted) == (5, 1)


def test_snapshot_does_not_change() -> None:
    """What was handed out stays as it was."""
    counter = StepCounter()
    before = counter.snapshot()
    counter.record(DECODE, StepExecution(LATE))

    assert before.num_decode_steps[LATE] == 0
    assert before.window.num_steps == 0


@given(modes=st.lists(st.sampled_from(StepMode), max_size=40), length=st.integers(1, 10))
def test_the_window_holds_the_last_decode_steps(modes: list[StepMode], length: int) -> None:
    """It is what counting the last steps anew would give; the totals forget nothing."""
    counter = StepCounter(window_steps=length)
    for mode in modes:
        counter.record(DECODE, StepExecution(mode))

    counts, recent = counter.snapshot(), Counter(modes[-length:])

    window = counts.window
    assert window.num_steps == min(length, len(modes))
    assert {
        REPLAYED: window.num_replayed,
        StepMode.BUCKETED: window.num_bucketed,
        EAGER: window.num_eager,
        LATE: window.num_late,
    } == {mode: recent[mode] for mode in StepMode}
    assert counts.num_decode_steps == {mode: modes.count(mode) for mode in StepMode}
