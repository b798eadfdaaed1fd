"""One change an operator could make, and what every suggestion shares. Computes nothing."""

from dataclasses import dataclass

MAX_UTILIZATION = 0.97  # above it, a driver's own needs break a boot or a later step
STEP = 0.01  # utilization is given in hundredths
SIXTEEN_BIT = (None, "auto", "bfloat16", "bf16", "float16", "half", "f16")


@dataclass(frozen=True, slots=True)
class Fix:
    """One change.

    Attributes:
        change: As it is typed for the engine, or what to do.
        effect: What it does, with numbers.
        freed_bytes: How much more there is, or less is asked for.
    """

    change: str
    effect: str
    freed_bytes: int
