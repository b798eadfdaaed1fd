"""JSON bodies of /health and /memory: what the boot decided, and what the loop has done since.

Pure: from numbers to plain JSON values. The boot's payload is passed on as
`plan.boot_info` made it, so that the words and figures are everywhere the same.
"""

from collections.abc import Mapping
from typing import Any

from nanoserve.engine.engine_health import Health
from nanoserve.engine.stats import StatsSnapshot
from nanoserve.engine.step_counts import StepCounts
from nanoserve.plan.memory_budget import MemoryReading


def health_body(
    health: Health, boot_info: Mapping[str, Any] | None, stats: StatsSnapshot
) -> dict[str, Any]:
    """Return the body of /health: the word, the reason, the boot and the loop.

    Args:
        health: As the engine says now.
        boot_info: The boot's payload; None for an engine wired without a boot.
        stats: What the loop has done.
    """
    return {
        "status": health.status.value,
        "detail": health.detail,
        "boot": None if boot_info is None else dict(boot_info),
        "loop": _loop_body(stats),
    }


def _loop_body(stats: StatsSnapshot) -> dict[str, Any]:
    gauges = stats.gauges
    return {
        "steps": _steps_body(stats.steps),
        "padded_rows": stats.steps.padded_rows,
        "evicted_graphs": stats.steps.num_evicted,
        "blocks": {
            "total": gauges.num_blocks,
            "free": gauges.num_free_blocks,
            "used": gauges.num_used_blocks,
            "cached": gauges.num_cached_blocks,
        },
        "preemptions": gauges.num_preemptions,
        "running": gauges.num_running,
        "waiting": gauges.num_waiting,
        "last_step_age_s": stats.last_step_age_s,
    }


def _steps_body(steps: StepCounts) -> dict[str, Any]:
    window = steps.window
    return {
        "total": steps.num_steps,
        "prefill": steps.num_prefill_steps,
        "decode": {mode.value: count for mode, count in steps.num_decode_steps.items()},
        "recent_decode": {
            "total": window.num_steps,
            "eager": window.num_eager,
            "bucketed": window.num_bucketed,
            "replayed": window.num_replayed,
            "late": window.num_late,
        },
    }


def memory_body(
    boot_info: Mapping[str, Any] | None, reading: MemoryReading | None
) -> dict[str, Any]:
    """Return the body of /memory: the budget line by line, and the device as it is now.

    Args:
        boot_info: The boot's payload; None for an engine wired without a boot.
        reading: The device now; None where nobody can ask it.
    """
    now = None if reading is None else _reading_body(reading)
    if boot_info is None:
        return {"device": None, "total_bytes": None, "budget": [], "kv_pool": None, "now": now}
    return {
        "device": boot_info["device"]["name"],
        "total_bytes": boot_info["device"]["total_bytes"],
        "budget": boot_info["budget"],
        "kv_pool": boot_info["kv_pool"],
        "now": now,
    }


def _reading_body(reading: MemoryReading) -> dict[str, int]:
    return {
        "free_bytes": reading.free_bytes,
        "own_bytes": reading.own_bytes,
        "context_bytes": reading.context_bytes,
        "other_processes_bytes": reading.other_processes_bytes,
    }
