"""Boot a model several times and say what each stage took, planned bytes beside measured.

Every boot has a process of its own, so that none finds libraries warm or memory held by
the one before. The stages are whatever the boot reports.
"""

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from nanoserve.bench.boot_bench_options import BootBenchOptions
from nanoserve.errors import NanoserveError
from nanoserve.launch.boot import boot
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_report import BootReport, StageReport, format_residual
from nanoserve.plan.text_table import table_lines
from nanoserve.units import format_bytes

_UNKNOWN = "-"  # holds no bytes, or nobody could measure them


class BootFailedError(NanoserveError):
    """A measured boot ended with an error; the message is that error's."""

    exit_code = 5


def measure_boots(model: str, asked: BootBenchOptions) -> tuple[BootReport, ...]:
    """Boot a model `asked.repeat` times on the device asked for, one after another.

    Raises:
        OptionError: The engine cannot be asked for this.
        BootFailedError: A boot was refused or failed.
    """
    options = EngineOptions(
        model=model,
        device=asked.device,
        max_num_seqs=asked.request_counts[0],
        max_model_len=asked.lengths[0],
        capture_limit=asked.capture_limit,
    )
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            return tuple(map(_checked, pool.map(boot_once, [options] * asked.repeat)))
    except BrokenProcessPool:
        message = "The process of a boot was killed, as the system does where memory runs out."
        raise BootFailedError(message) from None


def boot_once(options: EngineOptions) -> BootReport | str:
    """Return the report of one boot, or what it was refused for.

    Text, because an error that makes its message from its data does not travel between
    processes.
    """
    try:
        return boot(options).report
    except NanoserveError as error:
        return str(error)


def stage_lines(reports: Sequence[BootReport]) -> tuple[str, ...]:
    """Return the table of stages over all boots, and their sum last.

    Args:
        reports: One of each boot, at least one.
    """
    names = dict.fromkeys(stage.name for report in reports for stage in report.stages)
    header = ("stage", "median", "min", "max", "planned", "measured", "residual")
    rows = []
    for name in names:
        stages = [stage for report in reports for stage in report.stages if stage.name == name]
        rows.append((name, *_seconds([stage.seconds for stage in stages]), *_sizes(stages)))
    total = ("all", *_seconds([report.seconds for report in reports]), "", "", "")
    return table_lines([header, *rows, total])


def _checked(outcome: BootReport | str) -> BootReport:
    if isinstance(outcome, str):
        raise BootFailedError(outcome)
    return outcome


def _seconds(seconds: list[float]) -> tuple[str, str, str]:
    median, low, high = statistics.median(seconds), min(seconds), max(seconds)
    return f"{median:.2f} s", f"{low:.2f} s", f"{high:.2f} s"


def _sizes(stages: list[StageReport]) -> tuple[str, str, str]:
    """Return the medians of what was planned, measured and left between them."""
    planned = _median(stages, lambda stage: stage.planned_bytes)
    measured = _median(stages, lambda stage: stage.measured_bytes)
    residual = _median(stages, lambda stage: stage.residual_bytes)
    return (
        _UNKNOWN if planned is None else format_bytes(planned),
        _UNKNOWN if measured is None else format_bytes(measured),
        _UNKNOWN if residual is None else format_residual(residual),
    )


def _median(
    stages: list[StageReport], num_bytes: Callable[[StageReport], int | None]
) -> int | None:
    known = [size for stage in stages if (size := num_bytes(stage)) is not None]
    return statistics.median_low(known) if known else None
