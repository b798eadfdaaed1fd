"""The stages of a boot: named, timed, measured, and told to a listener.

Knows nothing of what a stage does (see `boot`).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from nanoserve.errors import BootError, DoesNotFitError, NanoserveError
from nanoserve.plan.boot_report import StageReport
from nanoserve.runner.device_memory import MemoryProbe
from nanoserve.runner.out_of_memory import is_out_of_memory


class BootListener(Protocol):
    """Who is told how the boot goes."""

    def stage_started(self, name: str) -> None:
        """Note that a stage begins."""
        ...

    def progress(self, done: int, total: int) -> None:
        """Note how far the present stage is; units are the stage's own."""
        ...

    def stage_finished(self, report: StageReport) -> None:
        """Note what a stage did."""
        ...

    def note(self, text: str) -> None:
        """Note a choice that was made for the operator, with its reason."""
        ...


class SilentListener:
    """A listener that keeps nothing."""

    def stage_started(self, name: str) -> None:
        """Ignore it."""

    def progress(self, done: int, total: int) -> None:
        """Ignore it."""

    def stage_finished(self, report: StageReport) -> None:
        """Ignore it."""

    def note(self, text: str) -> None:
        """Ignore it."""


@dataclass(slots=True)
class Stage:
    """What a running stage fills in for its report.

    Attributes:
        detail: What it found or made, for people.
        planned_bytes: Bytes it is to hold or, for a peak, to take for a moment.
        measured_bytes: What it set itself; None lets the device's growth stand here.
        peak_bytes: What it took at its highest; None where nobody asked.
    """

    detail: str = ""
    planned_bytes: int | None = None
    measured_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(slots=True)
class Stages:
    """Runs stages one after another and keeps their reports.

    Attributes:
        listener: Told of each stage.
        probe: Of the device whose bytes are measured.
        reports: Of the stages done, in order.
    """

    listener: BootListener
    probe: MemoryProbe
    reports: list[StageReport] = field(default_factory=list)

    @contextmanager
    def run(self, name: str) -> Iterator[Stage]:
        """Run the body as a stage that holds no bytes.

        Raises:
            DoesNotFitError: The device had no memory left.
            BootError: The body failed for a reason that is not one of our errors.
        """
        stage = Stage()
        self.listener.stage_started(name)
        started = time.perf_counter()
        try:
            yield stage
        except NanoserveError:
            raise
        except (RuntimeError, OSError, MemoryError) as error:
            raise self._failure(name, stage, error) from error
        seconds = time.perf_counter() - started
        report = StageReport(
            name,
            seconds,
            stage.detail,
            stage.planned_bytes,
            stage.measured_bytes,
            stage.peak_bytes,
        )
        self.reports.append(report)
        self.listener.stage_finished(report)

    @contextmanager
    def run_measured(self, name: str, planned_bytes: int) -> Iterator[Stage]:
        """Run the body as a stage that holds `planned_bytes`; what it really took is read."""
        with self.run(name) as stage:
            stage.planned_bytes = planned_bytes
            before_bytes = self.held_bytes()
            yield stage
            stage.measured_bytes = self.held_bytes() - before_bytes

    def measured_bytes(self, name: str) -> int | None:
        """Return what the stage `name` measured; None where it did not, or has not run."""
        reports = (report for report in self.reports if report.name == name)
        return next((report.measured_bytes for report in reports), None)

    def held_bytes(self) -> int:
        """Return what this process holds of the device: others' bytes have no part in it."""
        self.probe.settle()
        reading = self.probe.read()
        return reading.own_bytes + reading.context_bytes

    def _failure(self, name: str, stage: Stage, error: Exception) -> NanoserveError:
        if not is_out_of_memory(error):
            return BootError(name, f"{type(error).__name__}: {error}")
        planned_bytes, free_bytes = stage.planned_bytes or 0, self.probe.read().free_bytes
        what = f"The device ran out of memory in the stage '{name}'."
        if planned_bytes <= free_bytes:
            what += (
                " That much is free: a limit on this process (ulimit -v) is lower, or another "
                "process held it for a moment."
            )
        return DoesNotFitError(what, planned_bytes, free_bytes)
