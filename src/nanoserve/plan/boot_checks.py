"""Stand-in until the boot checks are merged."""

from dataclasses import dataclass

MAX_FALL_THROUGH = 0.01


@dataclass(frozen=True, slots=True)
class DecodeWindow:
    """The last decode steps by how they ran."""

    num_steps: int
    num_replayed: int
    num_bucketed: int
    num_eager: int
    num_late: int


def check_replays_dominate(window: DecodeWindow) -> str | None:
    """Return what is wrong where more than 1 % of the steps were eager or late."""
    num_missed = window.num_eager + window.num_late
    if num_missed <= MAX_FALL_THROUGH * window.num_steps:
        return None
    return (
        f"{num_missed:,} of the last {window.num_steps:,} decode steps were not replayed: "
        f"{window.num_eager:,} eager, {window.num_late:,} captured late."
    )
