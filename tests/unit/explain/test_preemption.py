"""What a load says of the requests taken at once."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.explain.preemption import diagnose_load, fitting_as_they_grow
from nanoserve.explain.serving_metrics import ServingMetrics


def test_preempting_asks_for_fewer_slots() -> None:
    """40 requests hold 97 % of the pool, so 41 fit at their lengths: 38 leaves headroom."""
    load = diagnose_load(
        ServingMetrics(num_preemptions=7, num_finished=70, num_running=40, pool_usage=0.97)
    )

    assert load.kind == "preempting"
    assert load.recommended_max_num_seqs == 38
    assert load.preempted_share == 0.1
    assert "0.10 for each finished one" in load.reason


def test_preemptions_of_a_peak_that_is_over() -> None:
    """A pool that is half empty now was full when they happened."""
    load = diagnose_load(ServingMetrics(num_preemptions=7, num_running=4, pool_usage=0.3))

    assert load.kind == "preempted earlier"
    assert load.recommended_max_num_seqs is None


def test_preemptions_alone() -> None:
    """Without a load nobody can say how many fit."""
    load = diagnose_load(ServingMetrics(num_preemptions=7))

    assert load.kind == "preempting"
    assert load.recommended_max_num_seqs is None


def test_a_full_pool_with_a_queue() -> None:
    """Nothing is sent back to wait yet: what limits is the pool."""
    load = diagnose_load(
        ServingMetrics(num_preemptions=0, num_running=10, num_waiting=5, pool_usage=0.95)
    )

    assert load.kind == "pool full"


def test_a_queue_before_an_idle_pool() -> None:
    """What limits is the slots: more could be taken."""
    load = diagnose_load(
        ServingMetrics(num_preemptions=0, num_running=32, num_waiting=100, pool_usage=0.25)
    )

    assert load.kind == "slots full"
    assert load.recommended_max_num_seqs == 118


@pytest.mark.parametrize(
    ("metrics", "kind"),
    [
        (ServingMetrics(num_running=1, num_waiting=0, pool_usage=0.1), "healthy"),
        (ServingMetrics(), "unknown"),
        (ServingMetrics(pool_usage=0.5), "unknown"),
    ],
)
def test_nothing_to_change(metrics: ServingMetrics, kind: str) -> None:
    """A load without a queue is healthy; no load is no answer."""
    assert diagnose_load(metrics).kind == kind


GROWING = ServingMetrics(
    num_preemptions=20,
    num_finished=18,
    mean_prompt=64,
    mean_answer=192,
    num_running=15,
    num_waiting=3,
    pool_usage=0.773,
    pool_tokens=2048,
    is_between=True,
)


def test_between_two_looks_a_preemption_is_of_now() -> None:
    """A pool that was full a moment ago is not over; nor is one for which requests wait."""
    load = diagnose_load(GROWING)

    assert load.kind == "preempting"
    assert "between the two looks" in load.reason
    assert diagnose_load(replace(GROWING, is_between=False)).kind == "preempting"
    assert diagnose_load(replace(GROWING, is_between=False, num_waiting=0)).kind == (
        "preempted earlier"
    )


def test_requests_are_counted_as_they_will_grow() -> None:
    """10 of 64 + 192 tokens hold 1,600 and 2 x 175 to spare of 2,048; 11 would hold 2,128."""
    assert fitting_as_they_grow(GROWING) == 10
    assert diagnose_load(GROWING).recommended_max_num_seqs == 10


def test_without_lengths_only_the_present_counts() -> None:
    """No request has finished yet: 15 hold 77.3 %, so 17 fit with headroom."""
    unknown = replace(GROWING, mean_prompt=None, mean_answer=None)

    assert fitting_as_they_grow(unknown) is None
    assert diagnose_load(unknown).recommended_max_num_seqs == 17


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**9))
def test_what_is_recommended_fits(prompt: int, answer: int, pool: int) -> None:
    """The spread left free is there, and one more request would take it."""
    metrics = ServingMetrics(mean_prompt=prompt, mean_answer=answer, pool_tokens=pool)

    def held(requests: int) -> float:
        return requests * (prompt + answer / 2) + 2 * answer * math.sqrt(requests / 12)

    fit = fitting_as_they_grow(metrics)
    assert fit is not None
    assert fit == 1 or held(fit) <= pool * (1 + 1e-9)
    assert held(fit + 1) > pool * (1 - 1e-9)
