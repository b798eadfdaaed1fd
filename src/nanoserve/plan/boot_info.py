"""What a boot tells the world: one payload for /health, /memory and --boot-report, and lines.

Pure: from plan and report to plain JSON values. The checks that refuse a payload which
contradicts itself are in `boot_checks`.
"""

from dataclasses import dataclass
from typing import Any

from nanoserve.plan.boot_plan import BootPlan
from nanoserve.plan.boot_report import BootReport


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

    ```
    {"model_dtype", "device", "decode_mode", "max_num_seqs", "max_model_len", ...,
     "kv_pool": {"num_blocks", ..., "bound_by", "sized_by"},
     "cuda_graphs": null | {"shapes", "is_warm", "recorded", "dropped", "width_bound_by", ...},
     "budget": [{"name", "planned_bytes", "measured_bytes", "residual_bytes"}],
     "stages": [{"name", "seconds", "planned_bytes", "measured_bytes", "residual_bytes"}]}
    ```
    """
    raise NotImplementedError


def boot_lines(info: dict[str, Any]) -> tuple[str, ...]:
    """Return the budget table printed at the end of a boot, one line each."""
    raise NotImplementedError
