"""A probe that says what a test tells it, and a listener that keeps what it is told."""

from collections.abc import Callable

from nanoserve.plan.boot_report import StageReport
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.units import GIB


class FakeProbe:
    """A device of `total_bytes` on which this process holds `own_bytes`."""

    def __init__(
        self, total_bytes: int = GIB, own_bytes: int = 0, peak_bytes: int | None = 7
    ) -> None:
        self.total_bytes = total_bytes
        self.own_bytes = own_bytes
        self.peak_bytes = peak_bytes
        self.num_settled = 0

    def read(self) -> MemoryReading:
        return MemoryReading(self.total_bytes, self.total_bytes - self.own_bytes, self.own_bytes)

    def settle(self) -> None:
        self.num_settled += 1

    def count_as_own(self, mapped_bytes: int) -> None:
        self.own_bytes += mapped_bytes

    def peak_delta(self, run: Callable[[], object]) -> int | None:
        run()
        return self.peak_bytes


class RecordingListener:
    """Keeps everything, in order."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.reports: list[StageReport] = []
        self.notes: list[str] = []
        self.steps: dict[str, list[tuple[int, int]]] = {}

    def stage_started(self, name: str) -> None:
        self.started.append(name)

    def progress(self, done: int, total: int) -> None:
        self.steps.setdefault(self.started[-1], []).append((done, total))

    def stage_finished(self, report: StageReport) -> None:
        self.reports.append(report)

    def note(self, text: str) -> None:
        self.notes.append(text)
