"""What a boot did: each budget line planned and measured, checked, and written to a file."""

import json
from pathlib import Path
from typing import Any

from nanoserve.launch.output_file import writing
from nanoserve.launch.stages import Stages
from nanoserve.plan.boot_plan import BootPlan
from nanoserve.plan.boot_report import BootReport, BudgetLine
from nanoserve.plan.memory_budget import MemoryReading

_STAGE_OF_PART = {"weights": "weights", "kv pool": "pool", "capture": "capture"}


def report_boot(plan: BootPlan, stages: Stages) -> BootReport:
    """Return what was done, with each part of the device measured where that is possible.

    Args:
        plan: As it stands once the pool and the capture list are settled.
        stages: All of them are done.
    """
    stages.probe.settle()
    measured = _measured_parts(stages, stages.probe.read())
    budget = tuple(
        BudgetLine(part.name, part.num_bytes, measured.get(part.name)) for part in plan.budget.parts
    )
    return BootReport(tuple(stages.reports), budget, _load_line(plan, stages))


def _load_line(plan: BootPlan, stages: Stages) -> BudgetLine | None:
    peaks = [one.peak_bytes for one in stages.reports if one.peak_bytes is not None]
    return BudgetLine("load", plan.load.peak_bytes, peaks[0]) if peaks else None


def _measured_parts(stages: Stages, reading: MemoryReading) -> dict[str, int | None]:
    parts = {part: stages.measured_bytes(stage) for part, stage in _STAGE_OF_PART.items()}
    rest_bytes = reading.own_bytes - sum(num_bytes or 0 for num_bytes in parts.values())
    return parts | {
        "activations": stages.measured_bytes("profile"),
        "driver context": reading.context_bytes,
        "this process at start": rest_bytes,
        "other processes": reading.other_processes_bytes,
    }


def write_report(path: str | None, info: dict[str, Any]) -> None:
    """Write `boot_info` as JSON, if a file was asked for.

    Raises:
        OptionError: The file can no longer be written.
    """
    if path is None:
        return
    with writing("--boot-report", path):
        Path(path).write_text(json.dumps(info, indent=2) + "\n")
