"""Rows of words to aligned lines for a terminal. Knows nothing of what they say."""

from collections.abc import Sequence


def table_lines(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return one line for each row: the first column flush left, the others flush right.

    Args:
        rows: The header first; all of one length.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple(
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in rows
    )
