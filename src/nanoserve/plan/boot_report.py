"""What a boot did, stage by stage: seconds, planned bytes, measured bytes."""

from dataclasses import dataclass

from nanoserve.units import format_bytes


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a boot.

    Attributes:
        name: `import`, `read`, `plan`, `weights`, `pool`.
        seconds: How long it took.
        detail: What it found or made, for people.
        planned_bytes: Bytes it was planned to hold; None where it holds none.
        measured_bytes: Bytes it really holds; None where it holds none.
    """

    name: str
    seconds: float
    detail: str
    planned_bytes: int | None = None
    measured_bytes: int | None = None

    def describe(self) -> str:
        """Return the line printed when the stage is done."""
        size = ""
        if self.measured_bytes is not None and self.planned_bytes is not None:
            size = f"{format_bytes(self.measured_bytes)}"
            if self.measured_bytes != self.planned_bytes:
                size += f" (planned {format_bytes(self.planned_bytes)})"
            size += ", "
        return f"{self.name:<8} {self.seconds:5.1f} s   {size}{self.detail}"


@dataclass(frozen=True, slots=True)
class BootReport:
    """All stages of a boot, in order."""

    stages: tuple[StageReport, ...]

    @property
    def seconds(self) -> float:
        """Seconds of all stages together."""
        return sum(stage.seconds for stage in self.stages)
