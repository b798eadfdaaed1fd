"""What a device has left for the KV pool, and what takes the rest of it.

Owns the two policies of `--gpu-memory-utilization` and the division of a device into
named parts. How many blocks come of it is `kv_plan`'s.
"""

from dataclasses import dataclass

from nanoserve.options import MemoryPolicy
from nanoserve.plan.memory_budget import MemoryBudget, MemoryReading
from nanoserve.units import format_bytes

PROCESS_POLICY_FREE_SHARE = 0.95  # of what is free; the rest is a margin for the neighbours


def reserve_bytes(reading: MemoryReading, utilization: float, policy: MemoryPolicy) -> int:
    """Return the free bytes that the utilization keeps back.

    `device` is a promise about the whole device: `(1 - u) * total` stays free whoever holds
    the rest, so what others hold comes out of the pool. `process` is a promise about this
    process alone: it may grow to `u * total`, and to 0.95 of what is free.

    Args:
        reading: The device with the weights on it.
        utilization: Share of the total to plan with, in (0, 1].
        policy: Whose promise it is.
    """
    share_bytes = int(utilization * reading.total_bytes)
    if policy == "device":
        return reading.total_bytes - share_bytes
    allowed_bytes = share_bytes - reading.own_bytes
    return reading.free_bytes - min(
        allowed_bytes, int(PROCESS_POLICY_FREE_SHARE * reading.free_bytes)
    )


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """A device with the weights on it, and what is set aside before the pool takes the rest.

    Attributes:
        reading: The device's memory, the weights already taken.
        weight_bytes: What the weights take of `reading.own_bytes`.
        reserve_bytes: Free bytes that are kept back.
        activation_bytes: What the largest step wants for a moment.
        capture_bytes: What recorded steps are given.
    """

    reading: MemoryReading
    weight_bytes: int
    reserve_bytes: int
    activation_bytes: int
    capture_bytes: int

    @property
    def budget_bytes(self) -> int:
        """What is left for the pool; may be negative."""
        set_aside = self.reserve_bytes + self.activation_bytes + self.capture_bytes
        return self.reading.free_bytes - set_aside

    def divide(self, pool_bytes: int) -> MemoryBudget:
        """Return the whole device as named parts, with a pool of `pool_bytes`."""
        own_bytes = max(0, self.reading.own_bytes - self.weight_bytes)
        named_bytes = {
            "weights": self.weight_bytes,
            "driver context": self.reading.context_bytes,
            "this process at start": own_bytes,
            "other processes": self.reading.other_processes_bytes,
            "kv pool": pool_bytes,
            "activations": self.activation_bytes,
            "capture": self.capture_bytes,
            "reserve": self.reserve_bytes,
        }
        return MemoryBudget.divide(self.reading.total_bytes, named_bytes)

    def describe(self) -> str:
        """Say in sentences what took the device, and what that leaves."""
        reading = self.reading
        set_aside = (
            f"{format_bytes(reading.own_bytes + reading.context_bytes)} is this process with its "
            f"weights, {format_bytes(self.activation_bytes)} is for activations, "
            f"{format_bytes(self.capture_bytes)} for capture"
        )
        return (
            f"Of {format_bytes(reading.total_bytes)}, "
            f"{format_bytes(reading.other_processes_bytes)} is held by other processes, "
            f"{set_aside}, and {format_bytes(self.reserve_bytes)} is kept back by "
            f"--gpu-memory-utilization: that leaves {format_bytes(self.budget_bytes)}."
        )
