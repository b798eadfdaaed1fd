"""From a pasted log to plain text: colours, rank prefixes and line wraps taken out.

Knows no engine's wording. Every step is linear in the text, whatever it holds.
"""

import re
from collections import Counter
from collections.abc import Iterator

MAX_CHARS = (
    64 * 1024 * 1024
)  # of a log; what comes before is dropped, since a boot fails at its end
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]{0,16}[A-Za-z]|\x1b\][^\x07\x1b]{0,200}\x07|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
_ORPHANED_COLOUR = re.compile(r"\[(?:[0-9]{1,2};?){1,4}m")  # what a paste leaves of an escape
_PREFIX = re.compile(
    r"\s{0,40}(?:"
    r"\((?:[A-Za-z_]{1,40}[\w.:/-]{0,40})(?:\s(?:rank=\d{1,4}|pid=\d{1,10})(?:,\s?ip=[\d.]{7,15})?){0,3}\)"
    r"|\[rank\d{1,4}\]:"
    r"|\[[\w.-]{1,40}\](?=\s{1,40}\||\s(?:INFO|ERROR|WARNING))"
    r"|[\w.-]{1,60}\s{1,40}\|"
    r"|\|"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]{0,10}(?:Z|[+-]\d\d:?\d\d)?"
    r"|(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)\s\d\d-\d\d\s\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
    r"|\[[\w./-]{1,80}\.py:\d{1,6}\]"
    r"|[\w./-]{1,80}\.py:\d{1,6}\]"
    r"|\[(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d[\d.,]{0,10}Z?(?:\s(?:DP|TP|PP|EP|ATTN_TP|ATTN_DP|MOE_EP)\d{1,4}){0,4}\]"
    r"|\[TensorRT-LLM\]\[(?:INFO|WARNING|ERROR)\]"
    r"|\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]"
    r"|\[TRT-LLM\](?:\s\[[A-Z]\])?"
    r"|\d{1,3}\.\d\d\.\d\d\d\.\d\d\d\s[IWED](?=\s)"
    r"|>{1,3}"
    r")"
)
_BLANK_LINES = re.compile(r"\n{2,}")
_MIN_LINE_CHARS = (
    16  # on average; a text of shorter lines is no log, and its lines are not looked at
)
_MAX_PREFIXES = 8
_MIN_PREFIXED_CHARS = 16  # no line worth reading is shorter than its prefix and a word
_MIN_WRAP, _MAX_WRAP = 60, 400  # columns of terminals that wrap
_MIN_WRAPPED_LINES = 3


def plain_log(text: str) -> str:
    """Return the log as one line of plain text, prefixes gone and every gap one space wide.

    Args:
        text: Anything at all.
    """
    text = text[-MAX_CHARS:].replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text or _CONTROL.search(text):
        text = _CONTROL.sub("", text)
    text = _BLANK_LINES.sub("\n", _ORPHANED_COLOUR.sub("", text))
    if len(text) > _MIN_LINE_CHARS * text.count("\n"):
        text = " ".join(_bare(line) for line in _unwrapped(text.split("\n")))
    return " ".join(text.split())


def _bare(line: str) -> str:
    if len(line) < _MIN_PREFIXED_CHARS:
        return line
    position = 0
    for _ in range(_MAX_PREFIXES):
        match = _PREFIX.match(line, position)
        if match is None:
            break
        position = match.end()
    return line[position:]


def _unwrapped(lines: list[str]) -> Iterator[str]:
    """Join lines that a terminal cut at its last column."""
    width = _wrap_width(lines)
    pending: list[str] = []
    for line in lines:
        pending.append(line)
        if len(line) != width:
            yield "".join(pending)
            pending = []
    if pending:
        yield "".join(pending)


def _wrap_width(lines: list[str]) -> int | None:
    """Return the column at which lines were cut; None where they do not look so."""
    lengths = Counter(map(len, lines))
    widest = max(lengths)
    is_wrapped = _MIN_WRAP <= widest <= _MAX_WRAP and lengths[widest] >= _MIN_WRAPPED_LINES
    return widest if is_wrapped else None
