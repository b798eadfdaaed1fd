"""A device's figures, whoever else uses it: injected ones, and this process's real ones."""

from pathlib import Path

import torch

from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.runner.device_memory import CudaProbe, HostProbe, probe_of
from nanoserve.units import GIB, KIB, MIB

STATUS = "VmHWM:\t{hwm} kB\nVmRSS:\t{rss} kB\nRssAnon:\t{anon} kB\n"


class FakeCuda:
    """A device of 10 GiB: this process's tensors, its context, and a neighbour."""

    def __init__(self, *, knows_process: bool = True) -> None:
        self.tensor_bytes = 3 * GIB
        self.cache_bytes = GIB // 2
        self.context_bytes = GIB // 4
        self.neighbour_bytes = 2 * GIB
        self.peak_bytes = 5 * GIB  # of the load, which was higher than what stayed
        self.knows_process = knows_process

    def take(self, num_bytes: int) -> None:
        """Allocate and free again."""
        self.peak_bytes = max(self.peak_bytes, self.tensor_bytes + num_bytes)
        self.cache_bytes = max(self.cache_bytes, num_bytes)

    def free_and_total(self) -> tuple[int, int]:
        used_bytes = self.reserved() + self.context_bytes + self.neighbour_bytes
        return 10 * GIB - used_bytes, 10 * GIB

    def allocated(self) -> int:
        return self.tensor_bytes

    def reserved(self) -> int:
        return self.tensor_bytes + self.cache_bytes

    def peak_allocated(self) -> int:
        return self.peak_bytes

    def empty_cache(self) -> None:
        self.cache_bytes = 0

    def start_peak(self) -> None:
        self.peak_bytes = self.tensor_bytes

    def process_bytes(self) -> int | None:
        return self.reserved() + self.context_bytes if self.knows_process else None


def test_process_context_and_neighbours_are_separate_figures() -> None:
    """What the driver holds for this process is neither its own bytes nor another's."""
    reading = CudaProbe(FakeCuda()).read()

    assert reading == MemoryReading(10 * GIB, 10 * GIB - 23 * GIB // 4, 7 * GIB // 2, GIB // 4)
    assert reading.other_processes_bytes == 2 * GIB


def test_context_counts_under_others_where_nobody_knows_it() -> None:
    """Without the driver's figure of this process nothing is lost, only less is named."""
    reading = CudaProbe(FakeCuda(knows_process=False)).read()

    assert reading.context_bytes == 0
    assert reading.other_processes_bytes == 2 * GIB + GIB // 4


def test_peak_is_what_the_run_added() -> None:
    """Neither the weights nor the higher peak of the load is counted."""
    cuda = FakeCuda()

    assert CudaProbe(cuda).peak_delta(lambda: cuda.take(GIB)) == GIB
    assert CudaProbe(cuda).peak_delta(lambda: None) == 0


def test_settling_gives_the_cache_back() -> None:
    """What the allocator kept of the load is free again before the device is asked."""
    probe = CudaProbe(FakeCuda())
    before = probe.read()

    probe.settle()

    assert probe.read().own_bytes == 3 * GIB
    assert probe.read().free_bytes == before.free_bytes + GIB // 2


def test_neighbour_that_leaves_during_the_run_changes_nothing() -> None:
    """Free memory that grows meanwhile is no error and no part of the peak."""
    cuda = FakeCuda()

    def run() -> None:
        cuda.take(GIB)
        cuda.neighbour_bytes = 0

    assert CudaProbe(cuda).peak_delta(run) == GIB
    assert CudaProbe(cuda).read().other_processes_bytes == 0


def test_neighbour_that_arrives_during_the_run_changes_nothing() -> None:
    """What another process takes meanwhile is no part of the peak."""
    cuda = FakeCuda()

    def run() -> None:
        cuda.neighbour_bytes += GIB
        cuda.take(GIB)

    assert CudaProbe(cuda).peak_delta(run) == GIB
    assert CudaProbe(cuda).read().other_processes_bytes == 3 * GIB


def host(root: Path, *, rss: int, anon: int, hwm: int) -> Path:
    """Write the files of a process whose sizes are in KiB."""
    folder = root / "proc/self"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "proc/meminfo").write_text("MemAvailable: 1000 kB\n")
    (folder / "status").write_text(STATUS.format(rss=rss, anon=anon, hwm=hwm))
    return root


def test_pages_of_mapped_files_are_not_own_bytes(tmp_path: Path) -> None:
    """Own bytes are anonymous pages; the total is these and what is free to the process."""
    root = host(tmp_path, rss=70, anon=50, hwm=90)

    reading = HostProbe(root, trim=lambda: None).read()

    assert reading == MemoryReading(1050 * KIB, 1000 * KIB, 50 * KIB)
    assert reading.other_processes_bytes == 0


def test_mapped_weights_are_own_bytes_and_not_free(tmp_path: Path) -> None:
    """The kernel calls them available; the total stays what it was."""
    probe = HostProbe(host(tmp_path, rss=70, anon=50, hwm=90), trim=lambda: None)
    before = probe.read()

    probe.count_as_own(20 * KIB)
    probe.count_as_own(10 * KIB)

    assert probe.read() == MemoryReading(before.total_bytes, 970 * KIB, 80 * KIB)


def test_host_peak_is_taken_from_a_mark_that_was_reset(tmp_path: Path) -> None:
    """The kernel is told to reset the mark, and the level is what is resident then."""
    probe = HostProbe(host(tmp_path, rss=70, anon=50, hwm=500), trim=lambda: None)

    peak = probe.peak_delta(lambda: host(tmp_path, rss=72, anon=51, hwm=95))

    assert peak == 25 * KIB
    assert (tmp_path / "proc/self/clear_refs").read_text() == "5"


def test_host_that_cannot_reset_its_mark_gives_no_peak(tmp_path: Path) -> None:
    """A mark of an earlier peak would be a figure about something else."""
    root = host(tmp_path, rss=70, anon=50, hwm=500)
    (root / "proc/self/clear_refs").mkdir()

    assert HostProbe(root, trim=lambda: None).peak_delta(lambda: None) is None


def test_this_process_s_growth_and_peak_are_seen() -> None:
    """48 MiB that stay are growth, and 64 MiB that come and go are a peak, within 4 MiB."""
    probe = probe_of(torch.device("cpu"))
    probe.settle()  # or the C library hands out what an earlier test freed
    before = probe.read()
    kept = torch.empty(48 * MIB, dtype=torch.uint8).fill_(1)

    growth = probe.read().own_bytes - before.own_bytes
    peak = probe.peak_delta(lambda: torch.empty(64 * MIB, dtype=torch.uint8).fill_(1))

    assert abs(growth - kept.nbytes) < 4 * MIB
    assert peak is not None
    assert abs(peak - 64 * MIB) < 4 * MIB
