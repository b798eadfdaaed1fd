"""`MemoryProbe`: the only place that asks a device what it holds, has free and peaked at.

Owns asking; what the figures are compared with is planned in `plan`. Every figure of CUDA
comes through `CudaFigures`, so that the arithmetic is tested without a device.
"""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch

from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.runner.host_heap import trim_heap
from nanoserve.runner.host_memory import host_memory_bytes, parse_status


class MemoryProbe(Protocol):
    """Who can say how a device's memory is used."""

    def read(self) -> MemoryReading:
        """Return what the device says now; cheap, and allowed beside running steps."""
        ...

    def settle(self) -> None:
        """Give back what the allocator holds and nobody uses, so that `read` tells what stays."""
        ...

    def count_as_own(self, mapped_bytes: int) -> None:
        """Count so many bytes more of mapped files as held: weights, which each step reads."""
        ...

    def peak_delta(self, run: Callable[[], object]) -> int | None:
        """Return the bytes that `run` took at its highest, over what was held before.

        None where the device cannot say. What other processes do meanwhile has no part
        in it.
        """
        ...


class CudaFigures(Protocol):
    """What torch's allocator and the driver say of one CUDA device; all in bytes."""

    def free_and_total(self) -> tuple[int, int]:
        """Return the device's free and total bytes, as its driver counts them."""
        ...

    def allocated(self) -> int:
        """Return what this process's tensors hold."""
        ...

    def reserved(self) -> int:
        """Return what the allocator holds, its cache and rounding included."""
        ...

    def peak_allocated(self) -> int:
        """Return the highest `allocated` since `start_peak`, steps still running included."""
        ...

    def empty_cache(self) -> None:
        """Give back what the allocator holds and no tensor uses."""
        ...

    def start_peak(self) -> None:
        """Let `peak_allocated` begin at the present level."""
        ...

    def process_bytes(self) -> int | None:
        """Return the driver's figure of this whole process; None where it has none."""
        ...


class CudaProbe:
    """A CUDA device through torch's allocator and the driver.

    The driver's context of this process is what NVML says of the process beyond the
    allocator's. Without `pynvml`, or in a container whose process ids NVML does not know,
    that figure is missing: the context then counts under other processes.
    """

    def __init__(self, figures: CudaFigures) -> None:
        self._figures = figures

    def read(self) -> MemoryReading:
        """Return what the device says now."""
        free_bytes, total_bytes = self._figures.free_and_total()
        own_bytes = self._figures.reserved()
        process_bytes = self._figures.process_bytes() or 0
        return MemoryReading(total_bytes, free_bytes, own_bytes, max(0, process_bytes - own_bytes))

    def settle(self) -> None:
        """Empty the allocator's cache."""
        self._figures.empty_cache()

    def count_as_own(self, mapped_bytes: int) -> None:
        """Ignore it: a file is mapped in the host's memory."""

    def peak_delta(self, run: Callable[[], object]) -> int:
        """Return the bytes that `run` allocated at its highest.

        The mark alone would count what was resident before, weights above all, once more.
        """
        self.settle()
        self._figures.start_peak()
        level_bytes = self._figures.allocated()
        run()
        return self._figures.peak_allocated() - level_bytes


class TorchCuda:
    """`CudaFigures` of a real device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_and_total(self) -> tuple[int, int]:
        """Return the device's free and total bytes, as its driver counts them."""
        return torch.cuda.mem_get_info(self._device)

    def allocated(self) -> int:
        """Return what this process's tensors hold."""
        return torch.cuda.memory_allocated(self._device)

    def reserved(self) -> int:
        """Return what the allocator holds, its cache and rounding included."""
        return torch.cuda.memory_reserved(self._device)

    def peak_allocated(self) -> int:
        """Return the highest `allocated` since `start_peak`, steps still running included."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)

    def empty_cache(self) -> None:
        """Give back what the allocator holds and no tensor uses."""
        torch.cuda.empty_cache()

    def start_peak(self) -> None:
        """Let `peak_allocated` begin at the present level."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def process_bytes(self) -> int | None:
        """Return NVML's figure of this process; None where NVML or the process is not found."""
        try:
            nvml: Any = import_module("pynvml")
        except ImportError:
            return None
        try:
            nvml.nvmlInit()
            uuid = torch.cuda.get_device_properties(self._device).uuid
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError:
            return None
        return next((p.usedGpuMemory for p in processes if p.pid == os.getpid()), None)


class HostProbe:
    """The CPU's memory, as the kernel counts it for this process.

    The total is what this process may have in all: what it holds and what is still free to
    it. Its own bytes are anonymous pages, and of mapped files what it was told to count: the
    kernel calls their pages available, as it can drop them, but weights come back with the
    next step.

    Args:
        root: Folder that holds `proc` and `sys`.
        trim: Gives back what the C library keeps of freed memory.
    """

    def __init__(self, root: Path = Path("/"), trim: Callable[[], None] | None = None) -> None:
        self._root = root
        self._self = root / "proc/self"
        self._trim = trim or trim_heap
        self._mapped_bytes = 0

    def read(self) -> MemoryReading:
        """Return what the kernel says now."""
        own_bytes = self._sizes()["RssAnon"] + self._mapped_bytes
        free_bytes = max(0, host_memory_bytes(self._root) - self._mapped_bytes)
        return MemoryReading(own_bytes + free_bytes, free_bytes, own_bytes)

    def settle(self) -> None:
        """Let the C library give back what it keeps of freed memory."""
        self._trim()

    def count_as_own(self, mapped_bytes: int) -> None:
        """Count so many bytes more of mapped files as own ones, and not as free."""
        self._mapped_bytes += mapped_bytes

    def peak_delta(self, run: Callable[[], object]) -> int | None:
        """Return the resident bytes that `run` took at its highest.

        None where the kernel does not let a process reset its high-water mark.
        """
        self.settle()
        try:
            (self._self / "clear_refs").write_text("5")  # resets VmHWM; see proc(5)
        except OSError:
            return None
        level_bytes = self._sizes()["VmRSS"]
        run()
        return self._sizes()["VmHWM"] - level_bytes

    def _sizes(self) -> dict[str, int]:
        return parse_status((self._self / "status").read_text())


def probe_of(device: torch.device) -> MemoryProbe:
    """Return the probe of a device."""
    return CudaProbe(TorchCuda(device)) if device.type == "cuda" else HostProbe()
