"""Bytes read and printed."""

import pytest

from nanoserve.units import GIB, MIB, ceil_div, format_bytes, parse_bytes, round_up


def test_ceil_div_and_round_up() -> None:
    """Division rounds up; zero stays zero."""
    assert [ceil_div(n, 16) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert [round_up(n, 128) for n in (0, 1, 128, 129)] == [0, 128, 128, 256]


def test_bytes_are_printed_with_their_unit() -> None:
    """GiB from one GiB up, MiB below."""
    assert format_bytes(3 * GIB) == "3.00 GiB"
    assert format_bytes(5 * MIB // 2) == "2.5 MiB"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1024", 1024), ("1.5GiB", 3 * GIB // 2), ("2 MiB", 2 * MIB), ("4g", 4 * GIB), ("7B", 7)],
)
def test_byte_counts_are_read(text: str, expected: int) -> None:
    """Plain integers and binary suffixes are understood."""
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 TB", "nan", "inf", "one", "1e400"])
def test_nonsense_is_refused(text: str) -> None:
    """What is not a byte count says what would be one."""
    with pytest.raises(ValueError, match="is not a byte count"):
        parse_bytes(text)
