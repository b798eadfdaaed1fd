"""Counters, histograms, and what one request adds to them."""

from nanoserve.engine.stats import EngineStats, Gauges, Histogram
from nanoserve.sched.step import FinishReason, StepExecution, StepPlan


def test_observation_on_a_bound_belongs_to_its_bucket() -> None:
    """Bounds are inclusive, and what passes them all is counted last."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)

    snapshot = histogram.snapshot()

    assert snapshot.counts == (2, 1, 1)
    assert (snapshot.count, snapshot.sum_s) == (4, 12.0)


def test_request_is_timed_from_submission() -> None:
    """The first token is a TTFT, later ones are gaps, and the end is an e2e."""
    stats = EngineStats()
    stats.record_submitted("a", num_prompt_tokens=7, now_s=10.0)
    for now_s in (11.0, 11.5, 12.5):
        stats.record_token("a", num_cached_tokens=4, now_s=now_s)
    stats.record_finished("a", FinishReason.STOP, now_s=13.0)

    shown = stats.snapshot(Gauges())

    assert (shown.ttft_s.count, shown.ttft_s.sum_s) == (1, 1.0)
    assert (shown.inter_token_s.count, shown.inter_token_s.sum_s) == (2, 1.5)
    assert (shown.e2e_s.count, shown.e2e_s.sum_s) == (1, 3.0)
    assert (shown.prompt_tokens, shown.cached_prompt_tokens, shown.generation_tokens) == (7, 4, 3)
    assert shown.finished[FinishReason.STOP] == 1


def test_request_without_a_token_has_no_ttft() -> None:
    """One aborted in the queue counts as ended, and its prompt was never computed."""
    stats = EngineStats()
    stats.record_submitted("a", num_prompt_tokens=7, now_s=0.0)
    stats.record_finished("a", FinishReason.ABORT, now_s=1.0)

    shown = stats.snapshot(Gauges())

    assert (shown.ttft_s.count, shown.e2e_s.count, shown.prompt_tokens) == (0, 1, 0)


def test_snapshot_does_not_change() -> None:
    """What was handed out stays as it was."""
    stats = EngineStats()
    before = stats.snapshot(Gauges())
    stats.record_submitted("a", 1, 0.0)
    stats.record_finished("a", FinishReason.STOP, 1.0)
    stats.record_step(StepPlan(0, ()), StepExecution(), 2.0)

    assert before.finished[FinishReason.STOP] == 0
    assert (before.steps.num_steps, before.last_step_time_s) == (0, None)


def test_age_and_the_queue_at_the_door_are_seen_from_outside() -> None:
    """A snapshot taken a while ago says how old its last step is by now."""
    stats = EngineStats()
    before = stats.snapshot(Gauges(num_waiting=1))
    stats.record_step(StepPlan(0, ()), StepExecution(), 2.0)

    seen = stats.snapshot(Gauges(num_waiting=1)).as_seen(5.0, num_incoming=2, num_rejected=4)

    assert before.as_seen(5.0, 0, 0).last_step_age_s is None
    assert (seen.last_step_age_s, seen.gauges.num_waiting, seen.num_rejected) == (3.0, 3, 4)
