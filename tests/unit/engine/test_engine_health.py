"""The engine's state in one word."""

import pytest

from nanoserve.engine.engine_health import Health, HealthStatus, judge_loop
from nanoserve.plan.boot_checks import DecodeWindow


def window(num_replayed: int = 0, num_eager: int = 0, num_late: int = 0) -> DecodeWindow:
    num_steps = num_replayed + num_eager + num_late
    return DecodeWindow(num_steps, num_replayed, 0, num_eager, num_late)


@pytest.mark.parametrize("status", list(HealthStatus))
def test_ok_and_degraded_take_requests(status: HealthStatus) -> None:
    """Every other state keeps new requests away."""
    takes_requests = status in (HealthStatus.OK, HealthStatus.DEGRADED)

    assert Health(status).is_ok is takes_requests


def test_late_captures_degrade_from_the_first_step() -> None:
    """Three of the first twenty steps are enough, and the reason has the numbers."""
    health = judge_loop(0.0, 60.0, window(num_replayed=17, num_late=3))

    assert health.status is HealthStatus.DEGRADED
    assert "3 of the last 20 decode steps" in health.detail


def test_one_miss_in_a_hundred_is_well() -> None:
    """More than 1 % is degraded, 1 % is not; before any step all is well."""
    just_right = judge_loop(0.0, 60.0, window(num_replayed=990, num_eager=10))
    one_more = judge_loop(0.0, 60.0, window(num_replayed=989, num_eager=11))

    assert just_right == judge_loop(0.0, 60.0, window()) == Health(HealthStatus.OK)
    assert one_more.status is HealthStatus.DEGRADED


def test_eager_steps_are_well_where_nobody_expects_replays() -> None:
    """Without a window there is no verdict on modes."""
    assert judge_loop(0.0, 60.0, None) == Health(HealthStatus.OK)


def test_a_stall_outranks_missing_replays() -> None:
    """An engine that does not get on is not merely slow."""
    health = judge_loop(61.0, 60.0, window(num_late=5))

    assert health.status is HealthStatus.STALLED
    assert "61 s" in health.detail
