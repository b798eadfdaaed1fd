"""`plan_capture`: which decode shapes are recorded before serving, and who set the limit.

A shape is (rows, width): how many requests, padded, and how many tokens of context, padded.
Pure arithmetic on ints; recording is `runner.decode_graphs`'s.
"""

from dataclasses import dataclass
from typing import Any, Literal

WIDTH_BUCKET = 128  # tokens; widths are its multiples
WidthBound = Literal["context", "flag", "bytes", "limit"]


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """The decode shapes to record.

    Attributes:
        shapes: (rows, width in tokens) in the order they are recorded: largest first.
        row_buckets: The row axis, ascending; its last is `max_rows`.
        width_buckets: The width axis in tokens, ascending; one entry where the backend's
            recorded kernels read lengths from the device.
        width_bound_by: Who set the widest: the served context unless something was
            strictly under it.
        full_count: Shapes that the served context wants, before anything trimmed it.
        budget_bytes: What capture may take; None where nobody said.
        limit: Graphs the process holds.
        arena_bytes: What the widest shape's shared arena takes.
    """

    shapes: tuple[tuple[int, int], ...]
    row_buckets: tuple[int, ...]
    width_buckets: tuple[int, ...]
    width_bound_by: WidthBound
    full_count: int
    budget_bytes: int | None
    limit: int
    arena_bytes: int

    @property
    def count(self) -> int:
        """Shapes that are recorded."""
        return len(self.shapes)

    @property
    def trimmed(self) -> int:
        """Shapes that were wanted and are not recorded before serving."""
        return self.full_count - self.count

    @property
    def max_rows(self) -> int:
        """Most rows of a shape."""
        return self.row_buckets[-1]

    @property
    def max_width(self) -> int:
        """Widest context of a shape, in tokens."""
        return self.width_buckets[-1]

    @property
    def widest(self) -> tuple[int, int]:
        """The largest shape, recorded first."""
        return (self.max_rows, self.max_width)

    def bucket(self, num_rows: int, context_len: int) -> tuple[int, int] | None:
        """Return the smallest shape that holds `num_rows` decodes of `context_len` tokens.

        None where there is none: a context above `max_width` or more rows than `max_rows`.
        """
        rows = next((rows for rows in self.row_buckets if rows >= num_rows), None)
        width = next((width for width in self.width_buckets if width >= context_len), None)
        return None if rows is None or width is None else (rows, width)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return one line for people."""
        raise NotImplementedError
