"""From a log file's bytes to plain text: encoding, colours, rank prefixes and line wraps undone.

What stood before the lines is kept apart: it often names the engine where no line does.
Knows no engine's wording. Every step is linear in the text, whatever it holds.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass

from nanoserve.explain.log_wrapping import unwrapped_lines

MAX_BYTES = 64 * 1024 * 1024  # read of a log, from its end, since that is where a boot fails
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]{0,16}[A-Za-z]|\x1b\][^\x07\x1b]{0,200}\x07|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
_ORPHANED_COLOUR = re.compile(r"\[(?:[0-9]{1,2};?){1,4}m")  # what a paste leaves of an escape
_PREFIX = re.compile(
    r"\s{0,40}(?:"
    r"\((?:[A-Za-z_]{1,40}[\w.:/-]{0,80})?(?:\s?(?:rank=\d{1,4}|pid=\d{1,10})(?:,\s?ip=[\d.]{7,15})?){0,3}\)"
    r"|\d{1,7}[:-](?=\(|\[|INFO|ERROR|WARN)"
    r"|(?:[\w./-]{1,80}\s){1,3}(?=(?:INFO|ERROR|WARNING)\s\d\d-\d\d)"
    r"|(?:stdout|stderr)\s[FP](?=\s)"
    r"|\[(?:pod/|gpu=|gpu_id=|container/)[\w./-]{1,120}\]"
    r"|`{1,3}"
    r"|['\"](?=[(\[]|INFO|ERROR|WARN)"
    r"|\[rank\d{1,4}\]:"
    r"|\[[\w.-]{1,40}\](?=\s{1,40}\||\s(?:INFO|ERROR|WARNING)|\s\d{1,3}\.\d\d\.\d\d\d\.)"
    r"|[\w.-]{1,60}\s{1,40}\|"
    r"|[A-Z][a-z]{2}\s{1,2}\d{1,2}\s\d\d:\d\d:\d\d\s[\w.-]{1,60}(?=\s[\w.-]{1,60}\[\d)"
    r"|[\w.-]{1,60}\[\d{1,10}\]:"
    r"|\[(?:Trace|Debug|Info|Warn|Warning|Error)\]"
    r"|\|"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]{0,10}(?:Z|[+-]\d\d:?\d\d)?"
    r"|(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)\s\d\d-\d\d\s\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
    r"|\[[\w./-]{1,80}\.py:\d{1,6}\]"
    r"|[\w./-]{1,80}\.py:\d{1,6}\]"
    r"|\[(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d[\d.,]{0,10}Z?(?:\s(?:DP|TP|PP|EP|ATTN_TP|ATTN_DP|MOE_EP)\d{1,4}){0,4}\]"
    r"|\[TensorRT-LLM\]\[(?:INFO|WARNING|ERROR)\]"
    r"|\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]"
    r"|\[TRT(?:-LLM)?\](?:\s\[RANK \d{1,4}\])?(?:\s\[[A-Z]\])?"
    r"|\d{1,3}\.\d\d\.\d\d\d\.\d\d\d\s[IWED](?=\s)"
    r"|>{1,3}"
    r")"
)
_MAX_SHORT_LINES = 200_000  # more lines than this that are short on average are no log
_MIN_LINE_CHARS = 16  # on average, of a text with so many lines; else they are not looked at
_MAX_PREFIXES = 8
_MIN_PREFIXED_CHARS = 16  # no line worth reading is shorter than its prefix and a word
_MAX_KINDS = 400  # of prefixes kept; a log has a handful
_DIGITS = str.maketrans("123456789", "0" * 9)
_QUOTE_CHARS = 300
_BYTE_ORDER_MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_PROBE_BYTES = 4096
_WIDE_SHARE = 0.4  # of zero bytes in a text of two-byte characters; half where all is ASCII


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line to quote.

    Attributes:
        number: In the file, from 1.
        text: Without its prefixes, shortened.
    """

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class PlainLog:
    """A log as one line of plain text, and where its lines began.

    Attributes:
        text: Prefixes gone and every gap one space wide.
        starts: Where in `text` each line that is not empty begins; empty where the text was
            not cut into lines.
        numbers: The number of each of these lines in the file, from 1.
        prefixes: What stood before the lines, each kind once, with every digit a 0.
    """

    text: str
    starts: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    prefixes: tuple[str, ...] = ()

    def line_at(self, position: int | None) -> LogLine | None:
        """Return the line that holds a place in `text`; None where nobody knows."""
        index = -1 if position is None else bisect_right(self.starts, position) - 1
        if index < 0:
            return None
        end = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.text)
        line = self.text[self.starts[index] : min(end, self.starts[index] + _QUOTE_CHARS)]
        return LogLine(self.numbers[index], line.strip())


def decode_log(content: bytes) -> str:
    """Return the text of a file in whatever encoding; what is no character is replaced.

    Windows' shells redirect into UTF-16, with or without a byte order mark. A log that was rotated
    by copying and cutting begins with as many zero bytes as were written before.
    """
    num_zeros = len(content) - len(content.lstrip(b"\0"))
    content = content[num_zeros - num_zeros % 2 :]  # of two-byte characters each keeps its half
    for mark, encoding in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            return content.decode(encoding, errors="replace")
    probe = content[:_PROBE_BYTES]
    odd, even = probe[1::2].count(0), probe[::2].count(0)
    if max(odd, even) > _WIDE_SHARE * len(probe):
        encoding = "utf-16-le" if odd > even else "utf-16-be"
        return content.decode(encoding, errors="replace")
    return content.decode("utf-8", errors="replace")


def plain_log(text: str, first_number: int = 1) -> PlainLog:
    """Return the log as one line of plain text that knows where its lines were.

    Args:
        text: Anything at all.
        first_number: The number of its first line, where what came before was cut off.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text or _CONTROL.search(text):
        text = _CONTROL.sub("", text)
    text = _ORPHANED_COLOUR.sub("", text)
    num_lines = text.count("\n")
    if num_lines > _MAX_SHORT_LINES and len(text) < _MIN_LINE_CHARS * num_lines:
        return PlainLog(" ".join(text.split()))
    parts: list[str] = []
    starts: list[int] = []
    numbers: list[int] = []
    kinds: dict[str, None] = {}
    position = 0
    for number, line, around in unwrapped_lines(text, first_number, _PREFIX):
        length = _prefix_length(line)
        words = " ".join(line[length:].split())
        if (length or around) and len(kinds) < _MAX_KINDS:
            kinds[(around + line[:length]).translate(_DIGITS)] = None
        if words:
            parts.append(words)
            starts.append(position)
            numbers.append(number)
            position += len(words) + 1
    return PlainLog(" ".join(parts), tuple(starts), tuple(numbers), tuple(kinds))


def _prefix_length(line: str) -> int:
    if len(line) < _MIN_PREFIXED_CHARS:
        return 0
    position = 0
    for _ in range(_MAX_PREFIXES):
        match = _PREFIX.match(line, position)
        if match is None:
            break
        position = match.end()
    return position
