"""What the launcher found about a device, asked once and handed to the plan."""

from dataclasses import dataclass
from typing import Literal

from nanoserve.plan.memory_budget import MemoryReading


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device.

    Attributes:
        kind: `cpu` or `cuda`.
        name: For people, e.g. `NVIDIA H200`.
        reading: Its memory before anything is loaded. On a CPU the total is what this
            process may have in all, and free is what it may still take.
        num_cores: CPU cores this process may run on.
        has_native_bf16: Whether bfloat16 arithmetic has hardware.
        has_native_ops: Whether layers run on the CPU's native operators, which read packed
            weights.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    reading: MemoryReading
    num_cores: int
    has_native_bf16: bool
    has_native_ops: bool = False

    @property
    def total_bytes(self) -> int:
        """All memory of the device."""
        return self.reading.total_bytes

    @property
    def free_bytes(self) -> int:
        """What this process may still take."""
        return self.reading.free_bytes
