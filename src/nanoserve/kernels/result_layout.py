"""Where the results of a recorded program lie in one block of memory.

Two results share bytes only if one is not needed any more when the other is written. Pure
arithmetic on ints; see `native_program`, which moves the results there.
"""

from dataclasses import dataclass

from nanoserve.units import round_up

ALIGNMENT = 64  # bytes: a cache line, so that no two results have one in common


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A result's size, and from which operator to which it is needed.

    Attributes:
        num_bytes: Its size.
        first: The first operator that is handed its address.
        last: The last one.
    """

    num_bytes: int
    first: int
    last: int

    @property
    def ops(self) -> range:
        """The operators during which it is needed."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class ResultLayout:
    """Places of results in a block.

    Attributes:
        offsets: Of each result, in bytes; multiples of `ALIGNMENT`.
        num_bytes: Size of the block.
    """

    offsets: tuple[int, ...]
    num_bytes: int


def lay_out(lifetimes: list[Lifetime]) -> ResultLayout:
    """Place every result, largest and oldest first, as low as those it lives beside let it.

    Of the transformer's steps this is within a few cache lines of the least there is, the
    bytes needed at once at the worst operator; a test holds it against that.
    """

    def rank(index: int) -> tuple[int, int]:
        return -lifetimes[index].num_bytes, lifetimes[index].first

    offsets = [0] * len(lifetimes)
    num_ops = max((life.last for life in lifetimes), default=-1) + 1
    needed_at: list[list[int]] = [[] for _ in range(num_ops)]  # what is placed, by operator
    for index in sorted(range(len(lifetimes)), key=rank):
        result = lifetimes[index]
        neighbours = {other for op in result.ops for other in needed_at[op]}
        offset = 0
        for other in sorted(neighbours, key=offsets.__getitem__):
            if offset + result.num_bytes <= offsets[other]:
                break
            end = round_up(offsets[other] + lifetimes[other].num_bytes, ALIGNMENT)
            offset = max(offset, end)
        offsets[index] = offset
        for op in result.ops:
            needed_at[op].append(index)
    ends = (offset + life.num_bytes for offset, life in zip(offsets, lifetimes, strict=True))
    return ResultLayout(tuple(offsets), max(ends, default=0))
