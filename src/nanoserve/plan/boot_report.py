"""What a boot did: seconds of each stage, and each budget line planned and measured."""

from dataclasses import dataclass

from nanoserve.units import format_bytes


def format_residual(num_bytes: int) -> str:
    """Print measured minus planned with its sign; what rounds to nothing is '0.0 MiB'."""
    nothing = format_bytes(0)
    if format_bytes(abs(num_bytes)) == nothing:
        return nothing
    return f"{'+' if num_bytes > 0 else ''}{format_bytes(num_bytes)}"


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a boot.

    Attributes:
        name: `import`, `read`, `kernels`, `plan`, `weights`, `compile`, `fix`, `profile`, `pool`
            or `capture`.
        seconds: How long it took.
        detail: What it found or made, for people.
        planned_bytes: Bytes it was planned to hold; None where it holds none.
        measured_bytes: Bytes the device or the process really grew by; None where it holds
            none, or nobody could measure.
        peak_bytes: Bytes it took at its highest; None where nobody measured.
    """

    name: str
    seconds: float
    detail: str
    planned_bytes: int | None = None
    measured_bytes: int | None = None
    peak_bytes: int | None = None

    @property
    def residual_bytes(self) -> int | None:
        """Measured minus planned; None where either is missing."""
        if self.planned_bytes is None or self.measured_bytes is None:
            return None
        return self.measured_bytes - self.planned_bytes

    def describe(self) -> str:
        """Return the line printed when the stage is done."""
        return f"{self.name:<8} {self.seconds:5.1f} s   {self._describe_size()}{self.detail}"

    def _describe_size(self) -> str:
        if self.measured_bytes is None or self.planned_bytes is None:
            return ""
        size = format_bytes(self.measured_bytes)
        residual = format_residual(self.measured_bytes - self.planned_bytes)
        if residual != format_residual(0):
            size += f" (planned {format_bytes(self.planned_bytes)}, {residual})"
        return f"{size}, "


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One part of the device's memory after boot.

    Attributes:
        name: As `MemoryBudget` names it.
        planned_bytes: As the plan said.
        measured_bytes: As the device or the process said; None where nobody can say.
    """

    name: str
    planned_bytes: int
    measured_bytes: int | None = None

    @property
    def residual_bytes(self) -> int | None:
        """Measured minus planned; None where nothing was measured."""
        return None if self.measured_bytes is None else self.measured_bytes - self.planned_bytes


@dataclass(frozen=True, slots=True)
class BootReport:
    """A whole boot, in order.

    Attributes:
        stages: What was done, in order.
        budget: The device's memory line by line, as it is once the boot is done.
        load: What packing the weights took at its highest; None where it was not measured.
    """

    stages: tuple[StageReport, ...]
    budget: tuple[BudgetLine, ...] = ()
    load: BudgetLine | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all stages together."""
        return sum(stage.seconds for stage in self.stages)
