"""A predicted figure with what it may be off by. Knows nothing of what is predicted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """Bytes predicted: the likely figure, and what nine of ten should lie between.

    Attributes:
        low: The least.
        mid: The likely one.
        high: The most.
    """

    low: int
    mid: int
    high: int

    @classmethod
    def exactly(cls, num_bytes: int) -> "Interval":
        """Return a figure that is known."""
        return cls(num_bytes, num_bytes, num_bytes)

    @classmethod
    def scaled(cls, factors: tuple[float, float, float], num_bytes: float = 1) -> "Interval":
        """Return `num_bytes` times each factor, the least first."""
        low, mid, high = (round(factor * num_bytes) for factor in factors)
        return cls(low, mid, high)

    def __add__(self, other: "Interval") -> "Interval":
        """Add as if both were off the same way, which is the cautious reading."""
        return Interval(self.low + other.low, self.mid + other.mid, self.high + other.high)

    def taken_from(self, num_bytes: int) -> "Interval":
        """Return what is left of `num_bytes`: the most where this is least."""
        return Interval(num_bytes - self.high, num_bytes - self.mid, num_bytes - self.low)

    def or_more(self, other: "Interval") -> "Interval":
        """Return the larger of the two, figure by figure."""
        return Interval(
            max(self.low, other.low), max(self.mid, other.mid), max(self.high, other.high)
        )

    def __contains__(self, num_bytes: float) -> bool:
        """Whether a figure lies between the least and the most."""
        return self.low <= num_bytes <= self.high
