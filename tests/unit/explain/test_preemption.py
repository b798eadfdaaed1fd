"""What a load says of the requests taken at once."""

import pytest

from nanoserve.explain.preemption import diagnose_load
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
