"""The bodies of /health and /memory."""

from nanoserve.engine.engine_health import Health, HealthStatus
from nanoserve.engine.stats import EngineStats, Gauges, StatsSnapshot
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.sched.step import StepExecution, StepMode, StepPlan
from nanoserve.server.error_response import strict_json
from nanoserve.server.status_bodies import health_body, memory_body
from tests.builders import make_boot_info


def make_stats() -> StatsSnapshot:
    """Return what a loop has done that recorded one graph late and replayed it once."""
    stats = EngineStats()
    for mode in (StepMode.LATE, StepMode.REPLAYED):
        execution = StepExecution(mode, padded_rows=2, num_evicted=mode is StepMode.LATE)
        stats.record_step(StepPlan(0, ()), execution, 2.0)
    gauges = Gauges(
        num_running=1,
        num_waiting=2,
        num_blocks=9,
        num_free_blocks=4,
        num_used_blocks=3,
        num_cached_blocks=2,
        num_preemptions=5,
    )
    return stats.snapshot(gauges).as_seen(5.0, num_incoming=1, num_rejected=0)


def test_health_shows_boot_and_loop() -> None:
    """Beside what the boot decided stands what the loop has done."""
    health = Health(HealthStatus.DEGRADED, "Because.")

    body = health_body(health, make_boot_info(), make_stats())

    assert (body["status"], body["detail"]) == ("degraded", "Because.")
    assert body["boot"] == make_boot_info()
    assert body["loop"] == {
        "steps": {
            "total": 2,
            "prefill": 0,
            "decode": {"eager": 0, "bucketed": 0, "replayed": 1, "late": 1},
            "recent_decode": {"total": 2, "eager": 0, "bucketed": 0, "replayed": 1, "late": 1},
        },
        "padded_rows": 4,
        "evicted_graphs": 1,
        "blocks": {"total": 9, "free": 4, "used": 3, "cached": 2},
        "preemptions": 5,
        "running": 1,
        "waiting": 3,
        "last_step_age_s": 3.0,
    }
    assert strict_json(body)


def test_health_without_a_boot_says_so() -> None:
    """An engine wired by hand has no boot, and none is made up."""
    body = health_body(Health(HealthStatus.OK), None, make_stats())

    assert body["boot"] is None


def test_memory_shows_every_line_and_now() -> None:
    """The figures are the boot's own; what the device says now stands beside them."""
    info = make_boot_info()
    reading = MemoryReading(total_bytes=1000, free_bytes=200, own_bytes=500, context_bytes=100)

    body = memory_body(info, reading)

    assert (body["device"], body["total_bytes"]) == ("a card", 1000)
    assert (body["budget"], body["kv_pool"]) == (info["budget"], info["kv_pool"])
    assert body["now"] == {
        "free_bytes": 200,
        "own_bytes": 500,
        "context_bytes": 100,
        "other_processes_bytes": 200,
    }


def test_memory_of_an_engine_without_a_boot_is_null() -> None:
    """The keys are always there."""
    assert memory_body(None, None) == {
        "device": None,
        "total_bytes": None,
        "budget": [],
        "kv_pool": None,
        "now": None,
    }
