"""What a boot tells the world: one payload for /health, /memory and --boot-report, and lines.

Pure: from plan and report to plain JSON values. The checks that refuse a payload which
contradicts itself are in `boot_checks`.
"""

from dataclasses import dataclass
from typing import Any

from nanoserve.plan.boot_plan import BootPlan
from nanoserve.plan.boot_report import BootReport, BudgetLine, StageReport, format_residual
from nanoserve.plan.kv_plan import KVPoolPlan
from nanoserve.plan.load_peak import LOAD_PEAK
from nanoserve.plan.text_table import table_lines
from nanoserve.units import format_bytes

_UNKNOWN = "-"  # nobody could measure it


@dataclass(frozen=True, slots=True)
class CaptureOutcome:
    """What warming did to the planned shapes.

    Attributes:
        recorded: Shapes recorded (captured) or run once (bucketed) before the loop existed.
        dropped: Planned shapes that a device without memory for them made the boot drop.
        is_warm: Whether every shape left in the plan is recorded.
        measured_bytes: What the recorded steps took; None where nobody could measure.
    """

    recorded: tuple[tuple[int, int], ...]
    dropped: tuple[tuple[int, int], ...]
    is_warm: bool
    measured_bytes: int | None = None


def boot_info(plan: BootPlan, report: BootReport, capture: CaptureOutcome | None) -> dict[str, Any]:
    """Return the boot as plain JSON values: the pool flat, capture under `cuda_graphs`.

    What callers are promised and what shapes are recorded stand apart, since neither comes
    from the other.

    ```
    {"device": {"kind", "name", "total_bytes", "num_cores"},
     "model_dtype", "kv_cache_dtype", "decode_mode", "threads", "max_num_seqs", "max_model_len",
     "max_num_batched_tokens", "weight_bytes", "activation_bytes", "notes": [...],
     "weights": {"quantization", "formats": [{"name", "num_bytes"}]},
     "kv_pool": {"num_blocks", ..., "bound_by", "sized_by"},
     "cuda_graphs": null | {"shapes", "is_warm", "recorded", "dropped", "width_bound_by", ...},
     "budget": [{"name", "planned_bytes", "measured_bytes", "residual_bytes"}],
     "stages": [{"name", "seconds", "detail", "planned_bytes", "measured_bytes",
                 "residual_bytes"}],
     "load": null | {"name", "planned_bytes", "measured_bytes", "residual_bytes"},
     "seconds": of all stages}
    ```

    Args:
        plan: As it stands once the pool and the capture list are settled.
        report: What the stages did.
        capture: What warming did; None where nothing was warmed.
    """
    return {
        "device": {
            "kind": plan.device.kind,
            "name": plan.device.name,
            "total_bytes": plan.device.total_bytes,
            "num_cores": plan.device.num_cores,
        },
        "model_dtype": plan.dtype,
        "kv_cache_dtype": plan.kv_cache_dtype,
        "decode_mode": plan.decode_mode,
        "threads": plan.threads,
        "max_num_seqs": plan.max_num_seqs,
        "max_model_len": plan.max_model_len,
        "max_num_batched_tokens": plan.max_num_batched_tokens,
        "weight_bytes": plan.weight_bytes,
        "weights": {
            "quantization": plan.weights.quantization,
            "formats": [
                {"name": name, "num_bytes": num_bytes} for name, num_bytes in plan.weights.parts
            ],
        },
        "activation_bytes": plan.activation_bytes,
        "notes": list(plan.notes),
        "kv_pool": _pool_info(plan.kv_pool),
        "cuda_graphs": _capture_info(plan, capture),
        "budget": [{"name": line.name, **_sizes(line)} for line in report.budget],
        "stages": [
            {
                "name": stage.name,
                "seconds": stage.seconds,
                "detail": stage.detail,
                **_sizes(stage),
            }
            for stage in report.stages
        ],
        "load": report.load and {"name": report.load.name, **_sizes(report.load)},
        "seconds": report.seconds,
    }


def boot_lines(info: dict[str, Any]) -> tuple[str, ...]:
    """Return the budget table printed at the end of a boot, one line each.

    A part that was planned empty, and is, is left out. What packing the weights took for a
    moment stands below the total, of which it is no part: it is given back before the pool.

    Args:
        info: As `boot_info` makes it.
    """
    lines = [line for line in info["budget"] if line["planned_bytes"] or line["measured_bytes"]]
    rows = [("memory", "planned", "measured", "residual"), *map(_row, lines)]
    planned_bytes = sum(line["planned_bytes"] for line in lines)
    rows.append(("total", format_bytes(planned_bytes), "", ""))
    if info["load"] is not None:
        rows.append((LOAD_PEAK, *_row(info["load"])[1:]))
    return table_lines(rows)


def _row(line: dict[str, Any]) -> tuple[str, str, str, str]:
    residual_bytes = line["residual_bytes"]
    return (
        line["name"],
        format_bytes(line["planned_bytes"]),
        _known(line["measured_bytes"]),
        _UNKNOWN if residual_bytes is None else format_residual(residual_bytes),
    )


def _pool_info(pool: KVPoolPlan) -> dict[str, Any]:
    reading = pool.reading
    return {
        "num_blocks": pool.num_blocks,
        "num_sink_blocks": pool.num_sink_blocks,
        "block_bytes": pool.block_bytes,
        "block_size": pool.block_size,
        "pool_bytes": pool.pool_bytes,
        "num_tokens": pool.num_tokens,
        "total_bytes": reading and reading.total_bytes,
        "free_after_load": reading and reading.free_bytes,
        "own_bytes": reading and reading.own_bytes,
        "context_bytes": reading and reading.context_bytes,
        "other_processes_bytes": reading and reading.other_processes_bytes,
        "reserve_bytes": pool.reserve_bytes,
        "activation_bytes": pool.activation_bytes,
        "capture_bytes": pool.capture_bytes,
        "concurrency_at_max_len": pool.concurrency_at_max_len,
        "bound_by": pool.bound_by,
        "sized_by": pool.sized_by,
    }


def _capture_info(plan: BootPlan, capture: CaptureOutcome | None) -> dict[str, Any] | None:
    if plan.capture is None:
        return None
    outcome = capture or CaptureOutcome(recorded=(), dropped=(), is_warm=False)
    return {
        **plan.capture.as_dict(),
        "is_warm": outcome.is_warm,
        "recorded": [list(shape) for shape in outcome.recorded],
        "dropped": [list(shape) for shape in outcome.dropped],
        "measured_bytes": outcome.measured_bytes,
    }


def _sizes(line: StageReport | BudgetLine) -> dict[str, int | None]:
    return {
        "planned_bytes": line.planned_bytes,
        "measured_bytes": line.measured_bytes,
        "residual_bytes": line.residual_bytes,
    }


def _known(num_bytes: int | None) -> str:
    return _UNKNOWN if num_bytes is None else format_bytes(num_bytes)
