"""What a page, a collector or a terminal puts around a log's lines, taken off again.

Quote marks, fences, HTML, JSON records, escaped line ends, lines cut at a terminal's width.
Knows no engine's wording. Every step is linear in the text; a line keeps its number.
"""

import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_QUOTES = re.compile(r"\s{0,20}(?:>\s?){1,20}")
_FENCE = re.compile(r"\s{0,20}(?:`{3,40}|~{3,40})[\w+.-]{0,20}\s{0,20}$")
_TAG = re.compile(
    r"</?(?:pre|code|span|font|b|i|em|strong|details|summary|samp|tt|a|u)(?:\s[^<>]{0,200})?>",
    re.IGNORECASE,
)
_LINE_END = re.compile(  # a line end that is written out, not the start of a name in a path
    r"(?i:<br\s?/?>|</?(?:p|div|tr|td|li|table|tbody)(?:\s[^<>]{0,200})?>)"
    r"|(?:\\r)?\\n(?=\s|\\n|[(\['\"]|$|[A-Z]{4,8}\s|[A-Z][a-z]{1,20}[\s:]|[\w.]{1,80}(?:Error|Exception):)"
)
_MESSAGE = re.compile(
    r"[\"'](?:log|message|msg|textPayload|line|body|content|MESSAGE|@message|event)[\"']\s?:\s?"
    r"\"((?:[^\"\\]|\\.){1,65536})"
)
_MAX_PARTS = 100_000  # of one line; what holds more is no log
_RECORD_CHARS = 4000  # of a record before its message: labels of pods are long
_MIN_WRAP, _MAX_WRAP = 60, 400  # columns of terminals that wrap
_USUAL_WRAPS = (80, 100, 120, 132, 160)  # columns of which one line is enough
_MIN_WRAPPED_LINES = 3  # of any other width: two lines are as long as each other by chance
_WRAPPED_SHARE = 0.2  # of a text's lines that are as wide as a terminal, at least


class RawLine(NamedTuple):
    """One line as it was written.

    Attributes:
        number: In the file, from 1.
        text: Without what was put around it.
        around: What was put around it and names its origin: a record's other fields.
    """

    number: int
    text: str
    around: str = ""


def unwrapped_lines(text: str, first_number: int, begins: re.Pattern[str]) -> Iterator[RawLine]:
    """Yield the lines of a log without what a paste put around them.

    Args:
        text: With line ends of one kind.
        first_number: The number of its first line.
        begins: What a line begins with that is nobody's continuation.
    """
    lines = _bare_lines(text.split("\n"), first_number)
    for line in _joined(list(lines), begins):
        yield from _of_record(line)


def _bare_lines(lines: list[str], first_number: int) -> Iterator[RawLine]:
    """Yield lines without quote marks, fences and HTML; one that holds several, as several."""
    for number, line in enumerate(lines, first_number):
        bare = line
        if "&" in bare and ";" in bare:
            bare = html.unescape(html.unescape(bare))
        if ">" in bare:
            quoted = _QUOTES.match(bare)
            bare = _TAG.sub("", bare[quoted.end() :] if quoted else bare)
        if ("`" in bare or "~" in bare) and _FENCE.match(bare):
            continue
        if "\\n" in bare or ("<" in bare and ">" in bare):
            is_one = bare[:1] == "{" or bare.count("\\n") > _MAX_PARTS
            for part in (bare,) if is_one else _LINE_END.split(bare):
                yield RawLine(number, part)
        else:
            yield RawLine(number, bare)


def _joined(lines: list[RawLine], begins: re.Pattern[str]) -> Iterator[RawLine]:
    """Yield lines, those joined that a terminal cut."""
    width = _wrap_width(line.text for line in lines)
    pending: list[RawLine] = []
    for line in lines:
        if pending and _is_next(line.text, begins):
            yield _as_one(pending)
            pending = []
        pending.append(line)
        if len(line.text) != width:
            yield _as_one(pending)
            pending = []
    if pending:
        yield _as_one(pending)


def _is_next(text: str, begins: re.Pattern[str]) -> bool:
    """Whether a line goes on with no other: it is empty, indented, a record, or prefixed."""
    return not text[:2].strip() or text.startswith('{"') or begins.match(text) is not None


def _as_one(lines: list[RawLine]) -> RawLine:
    if len(lines) == 1:
        return lines[0]
    return RawLine(lines[0].number, "".join(line.text for line in lines))


def _wrap_width(lines: Iterable[str]) -> int | None:
    """Return the column at which lines were cut; None where they do not look so.

    Prose around a log may be wider than the terminal that cut it.
    """
    lengths = Counter(map(len, lines))
    num_lines = sum(lengths.values()) - lengths[0]
    wide = [
        (count, length) for length, count in lengths.items() if _MIN_WRAP <= length <= _MAX_WRAP
    ]
    count, width = max(wide, default=(0, 0))
    widest = max(lengths, default=0)
    least = 1 if widest in _USUAL_WRAPS else _MIN_WRAPPED_LINES
    if lengths[widest] >= least and _MIN_WRAP <= widest <= _MAX_WRAP:
        return widest
    is_wrapped = count >= max(_MIN_WRAPPED_LINES, _WRAPPED_SHARE * num_lines)
    return width if is_wrapped else None


def _of_record(line: RawLine) -> Iterator[RawLine]:
    """Yield the message of a collector's JSON record, line by line; any other line as it is."""
    start = line.text.lstrip()[:2]
    if not start.startswith(("{", '"', "'")) and start != "[{":
        yield line
        return
    found = _MESSAGE.search(line.text, 0, _RECORD_CHARS + 65536)
    if found is None or found.start() > _RECORD_CHARS:
        yield line
        return
    around = line.text[: found.start()]
    for part in _unescaped(found[1]).split("\n"):
        yield RawLine(line.number, part, around)


def _unescaped(text: str) -> str:
    """Return a JSON string's characters; as they stand where they are no JSON."""
    try:
        value = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return text.replace("\\n", "\n").replace('\\"', '"')
    return value if isinstance(value, str) else text
