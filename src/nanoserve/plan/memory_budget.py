"""A device's memory as named parts that sum to its total, and one reading of a device.

Owns the names under which bytes are planned, measured, refused and served. Knows nothing
of how a part is counted (see `weight_plan`, `activation_plan`, `kv_plan`, `capture_plan`)
or of drivers (see `runner.device_memory`).
"""

from dataclasses import dataclass

from nanoserve.errors import InvariantError

REMAINDER = "unassigned"  # what no part claims; negative in a plan that is refused


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """What a device said of its memory at one moment.

    Attributes:
        total_bytes: All bytes of the device; on a CPU, what this process may have in all.
        free_bytes: Bytes nobody holds.
        own_bytes: What this process has allocated, the driver's context apart.
        context_bytes: What the driver holds for this process beside its allocations.
    """

    total_bytes: int
    free_bytes: int
    own_bytes: int = 0
    context_bytes: int = 0

    @property
    def other_processes_bytes(self) -> int:
        """What is neither free nor this process's: everybody else's.

        The figures are asked one after another, so another process may come or go between
        them: never negative.
        """
        used_bytes = self.total_bytes - self.free_bytes
        return max(0, used_bytes - self.own_bytes - self.context_bytes)


@dataclass(frozen=True, slots=True)
class BudgetPart:
    """One named share of a device.

    Attributes:
        name: `weights`, `driver context`, `this process at start`, `other processes`,
            `kv pool`, `activations`, `capture`, `reserve` or `unassigned`.
        num_bytes: Its bytes.
    """

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Named parts that sum to the device's total exactly, the remainder named last.

    Raises:
        InvariantError: The parts do not sum to the total; both sides are printed.
    """

    total_bytes: int
    parts: tuple[BudgetPart, ...]

    def __post_init__(self) -> None:
        """Check the sum."""
        num_bytes = sum(part.num_bytes for part in self.parts)
        if num_bytes != self.total_bytes:
            message = f"budget parts sum to {num_bytes} bytes and the total is {self.total_bytes}"
            raise InvariantError(message)

    @classmethod
    def divide(cls, total_bytes: int, named_bytes: dict[str, int]) -> "MemoryBudget":
        """Make a budget of `named_bytes` in their order, what is left over last."""
        left_bytes = total_bytes - sum(named_bytes.values())
        parts = [BudgetPart(name, num_bytes) for name, num_bytes in named_bytes.items()]
        return cls(total_bytes, (*parts, BudgetPart(REMAINDER, left_bytes)))

    def part_bytes(self, name: str) -> int:
        """Return the bytes of one part; 0 where there is none of that name."""
        return sum(part.num_bytes for part in self.parts if part.name == name)
