"""`plan_capture`: which decode shapes are recorded before serving, and who set the limit.

A shape is (rows, width): how many requests, padded, and how many tokens of context, padded.
Pure arithmetic on ints; recording is `runner.decode_graphs`'s.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from nanoserve.errors import CaptureTooSmall
from nanoserve.options import DEFAULT_CAPTURE_LIMIT
from nanoserve.plan.backend_facts import ArenaBytes, BackendFacts
from nanoserve.plan.capture_axes import (
    WIDTH_BUCKET,
    close_row_buckets,
    row_buckets,
    width_buckets,
    width_from_limit,
)
from nanoserve.units import format_bytes

WidthBound = Literal["context", "flag", "bytes", "limit"]

_BOUND_BY = {
    "context": "the served context",
    "flag": "--warm-width",
    "bytes": "the bytes given to capture",
    "limit": "the number of graphs held",
}


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What may be recorded; None where nobody said.

    Attributes:
        max_rows: Most rows of a shape, at least 1, and a row bucket itself, as the slot
            count is without it; a step with more rows runs eager.
        max_width: Widest context of a shape, in tokens.
        budget_bytes: What recorded steps may take beside their inputs and outputs.
        limit: Graphs the process holds.
    """

    max_rows: int | None = None
    max_width: int | None = None
    budget_bytes: int | None = None
    limit: int = DEFAULT_CAPTURE_LIMIT


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """The decode shapes to record.

    Attributes:
        shapes: (rows, width in tokens) in the order they are recorded: largest first.
        row_buckets: The row axis, ascending; its last is `max_rows`.
        width_buckets: The width axis in tokens, ascending; one entry where the backend's
            recorded kernels read lengths from the device.
        width_bound_by: Who set the widest: the served context unless something was less.
        full_count: Shapes that the served context wants, before its widths were trimmed.
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
        return {
            "shapes": [list(shape) for shape in self.shapes],
            "row_buckets": list(self.row_buckets),
            "width_buckets": list(self.width_buckets),
            "max_rows": self.max_rows,
            "max_width": self.max_width,
            "widest": list(self.widest),
            "width_bound_by": self.width_bound_by,
            "count": self.count,
            "full_count": self.full_count,
            "trimmed": self.trimmed,
            "budget_bytes": self.budget_bytes,
            "limit": self.limit,
            "arena_bytes": self.arena_bytes,
        }

    def describe(self) -> str:
        """Return one line for people."""
        return (
            f"{self.count} of {self.full_count} shapes, to {self.max_rows:,} rows of "
            f"{self.max_width:,} tokens (set by {_BOUND_BY[self.width_bound_by]}), "
            f"arena {format_bytes(self.arena_bytes)}"
        )


def plan_capture(
    max_num_seqs: int,
    context: int,
    *,
    request: CaptureRequest,
    arena_bytes: ArenaBytes,
    depends_on_width: bool,
    has_close_rows: bool = False,
) -> CapturePlan:
    """Choose the decode shapes to record before serving.

    The served context, the operator's width, the bytes and the number of graphs become one
    ceiling on the width axis. The list is trimmed from the top of that axis in whole rows:
    a request walks the widths from the bottom, so a shape missing at the top is recorded
    once, late, by a request that has long begun to answer.

    Args:
        max_num_seqs: Requests that run at once, at least 1.
        context: Longest request in tokens, at least 1.
        request: What may be recorded.
        arena_bytes: What a shape takes; the arena is shared and as big as its widest member.
        depends_on_width: False gives one width, the ceiling: a recorded step reads the lengths.
        has_close_rows: Whether rows are planned as `close_row_buckets`, if so many graphs may
            be held: where recording is cheap, and a row of padding is not.

    Raises:
        CaptureTooSmall: Not one width fits; its advice was planned again.
    """
    backend = BackendFacts(depends_on_width, arena_bytes)
    rows = _row_axis(max_num_seqs, request)
    if has_close_rows and len(close := close_row_buckets(rows[-1])) <= request.limit:
        rows = close
    try:
        return _plan(rows, context, request, backend)
    except CaptureTooSmall as error:
        advice = _verified_advice(max_num_seqs, context, request, backend)
        raise CaptureTooSmall(error.bound_by, error.have, error.need, advice) from None


@dataclass(frozen=True, slots=True)
class _Constraint:
    """What may set the ceiling.

    Attributes:
        name: Who it is.
        count: Width buckets it allows.
        have: What it was set to.
        need: The least that allows one bucket.
        field: Where `CaptureRequest` holds it; empty for the served context.
        flag: How the operator sets it.
    """

    name: WidthBound
    count: int
    have: int
    need: int
    field: str = ""
    flag: str = ""


def _plan(
    rows: tuple[int, ...], context: int, request: CaptureRequest, backend: BackendFacts
) -> CapturePlan:
    wanted = width_buckets(context)
    # The first of the lowest: only what is strictly under the context takes the name.
    lowest = min(_constraints(rows, wanted, request, backend), key=lambda each: each.count)
    if lowest.count < 1:
        raise CaptureTooSmall(lowest.name, lowest.have, lowest.need)
    narrowest = 0 if backend.depends_on_width else lowest.count - 1
    widths = tuple(wanted[narrowest : lowest.count])
    return CapturePlan(
        shapes=tuple((row, width) for width in reversed(widths) for row in reversed(rows)),
        row_buckets=rows,
        width_buckets=widths,
        width_bound_by=lowest.name,
        full_count=len(rows) * (len(wanted) if backend.depends_on_width else 1),
        budget_bytes=request.budget_bytes,
        limit=request.limit,
        arena_bytes=backend.arena_bytes(rows[-1], widths[-1]),
    )


def _row_axis(max_num_seqs: int, request: CaptureRequest) -> tuple[int, ...]:
    cap = max_num_seqs if request.max_rows is None else request.max_rows
    return row_buckets(min(max_num_seqs, cap))


def _constraints(
    rows: tuple[int, ...], wanted: range, request: CaptureRequest, backend: BackendFacts
) -> list[_Constraint]:
    """Return the context and what was given beside it, in the order that ties go."""
    found = [_Constraint("context", len(wanted), wanted[-1], WIDTH_BUCKET)]
    if (width := request.max_width) is not None:
        count = width // WIDTH_BUCKET
        found.append(_Constraint("flag", count, width, WIDTH_BUCKET, "max_width", "--warm-width"))
    if (num_bytes := request.budget_bytes) is not None:
        count = sum(backend.arena_bytes(rows[-1], each) <= num_bytes for each in wanted)
        need = backend.arena_bytes(rows[-1], WIDTH_BUCKET)
        found.append(
            _Constraint("bytes", count, num_bytes, need, "budget_bytes", "--capture-bytes")
        )
    count = width_from_limit(len(rows), request.limit)
    if count and not backend.depends_on_width:
        count = len(wanted)  # one graph of a row bucket serves every width
    found.append(_Constraint("limit", count, request.limit, len(rows), "limit", "--capture-limit"))
    return found


def _verified_advice(
    max_num_seqs: int, context: int, request: CaptureRequest, backend: BackendFacts
) -> tuple[str, ...]:
    """Return flags with which the plan was made again: what is too low raised, or fewer rows."""
    rows = _row_axis(max_num_seqs, request)
    constraints = _constraints(rows, width_buckets(context), request, backend)
    too_low = [each for each in constraints if each.count < 1]
    raised = replace(request, **{each.field: each.need for each in too_low})
    candidates = [(" with ".join(f"{each.flag} {each.need}" for each in too_low), raised)]
    candidates += [
        (f"--warm-rows {fewer}", replace(request, max_rows=fewer)) for fewer in rows[-2::-1]
    ]
    advice = [
        flags for flags, changed in candidates if _can_plan(max_num_seqs, context, changed, backend)
    ]
    return tuple(advice[:2])  # the most rows that fit say enough


def _can_plan(
    max_num_seqs: int, context: int, request: CaptureRequest, backend: BackendFacts
) -> bool:
    try:
        _plan(_row_axis(max_num_seqs, request), context, request, backend)
    except CaptureTooSmall:
        return False
    return True
