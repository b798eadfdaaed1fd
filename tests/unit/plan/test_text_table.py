"""Tables line up."""

import pytest

from nanoserve.plan.text_table import table_lines


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    """Names stand flush left, figures flush right, and no line ends in blanks."""
    rows = (("name", "bytes", "of"), ("weights", "12", ""), ("a", "7", "100"))

    assert table_lines(rows) == (
        "name     bytes   of",
        "weights     12",
        "a            7  100",
    )


def test_rows_of_different_lengths_are_a_mistake() -> None:
    """A missing cell is not taken for an empty one."""
    with pytest.raises(ValueError, match="zip"):
        table_lines((("a", "b"), ("c",)))
