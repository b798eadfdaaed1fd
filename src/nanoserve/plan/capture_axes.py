"""The two axes of recorded decode shapes: how many rows, and how many tokens of context.

Pure arithmetic on ints; which shapes of the grid are recorded is `capture_plan`'s.
"""

from nanoserve.units import round_up

WIDTH_BUCKET = 128  # tokens; widths are its multiples
MIXED_TOKENS = 512  # larger steps gain nothing: Python is a small part of them


def mixed_tokens(step_tokens: int) -> int:
    """Return the most tokens of a step with prompts that is recorded, of steps of so many."""
    return min(step_tokens, MIXED_TOKENS)


def row_buckets(max_rows: int) -> tuple[int, ...]:
    """Return the powers of two under `max_rows`, then `max_rows` itself: (1, 2, 4, 6) of 6."""
    assert max_rows >= 1, f"a step has at least one row, not {max_rows}"  # noqa: S101
    return (*(1 << power for power in range((max_rows - 1).bit_length())), max_rows)


def close_row_buckets(max_rows: int) -> tuple[int, ...]:
    """Return every number up to 16, then eight to an octave, then `max_rows` itself.

    A step is padded by at most an eighth: up to 32 the buckets are 1 to 16, 18, 20, ... 32.
    """
    assert max_rows >= 1, f"a step has at least one row, not {max_rows}"  # noqa: S101
    rows = [1]
    while rows[-1] < max_rows:
        rows.append(rows[-1] + max(1, 1 << max(0, rows[-1].bit_length() - 4)))
    return (*rows[:-1], max_rows)


def width_buckets(context: int) -> range:
    """Return the multiples of `WIDTH_BUCKET` up to the first that holds `context` tokens."""
    return range(WIDTH_BUCKET, round_up(context, WIDTH_BUCKET) + 1, WIDTH_BUCKET)


def width_from_limit(num_row_buckets: int, limit: int) -> int:
    """Return how many width buckets `limit` graphs hold, each with all its rows."""
    return limit // num_row_buckets
