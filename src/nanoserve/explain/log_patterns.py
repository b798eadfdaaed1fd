"""Finding figures in plain log text: an anchor to look for, then a bounded expression.

Knows no engine. A search costs one pass over the text for each anchor, and an expression
only ever sees `WINDOW` characters, so no text makes reading slow.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nanoserve.explain.logged_boot import Findings
from nanoserve.units import GIB, KIB, MIB

WINDOW = 700  # characters an expression may look at from its anchor on
MAX_HITS = 200  # of one anchor, from either end of the log

NUMBER = r"(-?[\d.,]{1,20})"
QUOTED = r"['\"]?([^\s'\",)]{1,200})"
_UNIT_BYTES = {"KIB": KIB, "MIB": MIB, "GIB": GIB, "KB": KIB, "MB": MIB, "GB": GIB, "BYTES": 1}

Value = int | float | str | bool | None


class Figure(NamedTuple):
    """What one group of an expression means: a field, how to read it, which of several stays."""

    name: str
    read: Callable[[str], Value]
    keep: str = "last"


class LinePattern(NamedTuple):
    """One line an engine prints.

    Attributes:
        anchor: Text that the line holds, as printed.
        regex: Searched from the anchor on; its groups are `figures`, in order.
        figures: What the groups mean; a group that is absent is skipped.
    """

    anchor: str
    regex: re.Pattern[str]
    figures: tuple[Figure, ...]


def line_pattern(anchor: str, regex: str, *figures: Figure) -> LinePattern:
    """Return a pattern whose expression starts at the anchor."""
    return LinePattern(anchor, re.compile(regex), figures)


def number_after(anchor: str, *figures: Figure) -> LinePattern:
    """Return the pattern of a number that stands right after its anchor."""
    return line_pattern(anchor, rf"{re.escape(anchor)}\s?{NUMBER}", *figures)


def setting(name: str, *figures: Figure) -> tuple[LinePattern, LinePattern]:
    """Return the patterns of an option: `name=1`, `'name': 1`, and the flag `--name 1`."""
    flag = f"--{name.replace('_', '-')}"
    return (
        line_pattern(name, rf"{name}['\"]?(?:=|:\s?){NUMBER}", *figures),
        line_pattern(flag, rf"{flag}[= ]{NUMBER}(?![\w.])", *figures),
    )


def find_figures(text: str, patterns: tuple[LinePattern, ...], findings: Findings) -> None:
    """Put every figure that the patterns find into `findings`."""
    for pattern in patterns:
        for position in positions(text, pattern.anchor):
            match = pattern.regex.search(text, position, position + WINDOW)
            if match is None:
                continue
            for figure, group in zip(pattern.figures, match.groups(), strict=False):
                if group is not None:
                    findings.put(figure.name, figure.read(group), figure.keep, position)


def positions(text: str, anchor: str) -> Iterator[int]:
    """Return where the anchor stands, in order; of a great many, the first and the last."""
    position = text.find(anchor)
    first: list[int] = []
    while position >= 0 and len(first) < MAX_HITS:
        first.append(position)
        position = text.find(anchor, position + len(anchor))
    yield from first
    if position < 0:
        return
    last: list[int] = []
    end = len(text)
    while len(last) < MAX_HITS and (found := text.rfind(anchor, position, end)) >= 0:
        last.append(found)
        end = found
    yield from reversed(last)


def number(text: str) -> float | None:
    """Read `1,234.5`; None where it is no number."""
    try:
        return float(text.replace(",", "").rstrip("."))
    except ValueError:
        return None


def count(text: str) -> int | None:
    """Read `1,234`; None where it is no whole number of at least 0."""
    digits = text.replace(",", "").rstrip(".")
    return int(digits) if digits.isascii() and digits.isdigit() else None


def gib(text: str) -> int | None:
    """Read a number of GiB as bytes."""
    value = number(text)
    return None if value is None else round(value * GIB)


def sized_or_gib(text: str) -> int | None:
    """Read a size with its unit, or a bare number of GiB, as bytes."""
    return sized(text) if text[-1:].isalpha() else gib(text)


def mib(text: str) -> int | None:
    """Read a number of MiB as bytes."""
    value = number(text)
    return None if value is None else round(value * MIB)


def sized(text: str) -> int | None:
    """Read `12.5 GiB`, `300.00 MiB` or `59212694937 bytes` as bytes; GB is taken as GiB.

    PyTorch's, vLLM's and SGLang's "GB" are powers of two.
    """
    match = re.match(r"(-?[\d.,]{1,20})\s?([A-Za-z]{2,5})", text)
    value = None if match is None else number(match[1])
    if match is None or value is None or match[2].upper() not in _UNIT_BYTES:
        return None
    return round(value * _UNIT_BYTES[match[2].upper()])


def share(text: str) -> float | None:
    """Read a share of a whole; None where it is not within 0 to 1."""
    value = number(text)
    return value if value is not None and 0 < value <= 1 else None
