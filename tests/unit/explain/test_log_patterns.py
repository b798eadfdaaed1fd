"""Anchors, bounded expressions and numbers of logs."""

import pytest

from nanoserve.explain.log_patterns import (
    MAX_HITS,
    NUMBER,
    Figure,
    count,
    find_figures,
    gib,
    line_pattern,
    mib,
    number,
    positions,
    share,
    sized,
)
from nanoserve.explain.logged_boot import Findings
from nanoserve.units import GIB, MIB


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,234.5", 1234.5), ("12.", 12), ("-0.9", -0.9), ("1.2.3", None), (",", None)],
)
def test_numbers(text: str, value: float | None) -> None:
    """Thousands may be parted; what is no number is None."""
    assert number(text) == value


@pytest.mark.parametrize(("text", "value"), [("1,024", 1024), ("7.", 7), ("-1", None), ("²", None)])
def test_counts(text: str, value: int | None) -> None:
    """A count is whole and not negative."""
    assert count(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5 GiB", 3 * GIB // 2),
        ("20.00 MiB", 20 * MIB),
        ("2 GB", 2 * GIB),
        ("59212694937 bytes", 59212694937),
        ("3 furlongs", None),
        (". GiB", None),
        ("GiB", None),
    ],
)
def test_sizes(text: str, value: int | None) -> None:
    """Engines write GB for GiB."""
    assert sized(text) == value


def test_plain_sizes_and_shares() -> None:
    """A share lies within 0 to 1; what is no number stays None."""
    assert (gib("0.5"), mib("2"), share("0.9")) == (GIB // 2, 2 * MIB, 0.9)
    assert (gib("."), mib("."), share("90"), share("0")) == (None, None, None, None)


def test_all_positions_of_a_few() -> None:
    """An anchor's places come in order."""
    assert list(positions("a..a.a", "a")) == [0, 3, 5]
    assert list(positions("...", "a")) == []


def test_the_first_and_the_last_of_many() -> None:
    """Of a great many places the middle is left out."""
    found = list(positions("ab" * 1000, "ab"))

    assert found[:2] == [0, 2]
    assert found[-1] == 1998
    assert len(found) == 2 * MAX_HITS
    assert found == sorted(set(found))


def test_of_several_ranks_the_figure_that_decides_stays() -> None:
    """The smallest pool of all ranks is the pool."""
    pattern = line_pattern("pool:", rf"pool: {NUMBER}", Figure("pool_bytes", gib, "min"))
    findings = Findings()

    find_figures("pool: 3 pool: 2 pool: 4 pool: none", (pattern,), findings)

    assert findings.values == {"pool_bytes": 2 * GIB}


@pytest.mark.parametrize(("keep", "kept"), [("first", 3), ("last", 4), ("min", 2), ("max", 4)])
def test_which_figure_stays(keep: str, kept: int) -> None:
    """A figure says itself which of several is meant; None is none."""
    findings = Findings()

    for value in (3, 2, None, 4):
        findings.put("num_blocks", value, keep)

    assert findings.values == {"num_blocks": kept}
