"""An HTTP response with an event stream, read from its noted pieces.

Understands what servers of the OpenAI API send: a status line, headers, a body that is
chunked or not, and `data:` lines. Knows nothing of what an event says.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One `data:` line.

    Attributes:
        time_s: When its last byte came.
        payload: After `data:`.
    """

    time_s: float
    payload: str


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A response that was read.

    Attributes:
        status: Of its first line.
        events: The body's `data:` lines, without [DONE].
        body: All of it, for an answer that is no stream.
        is_done: Whether [DONE] came.
    """

    status: int
    events: tuple[StreamEvent, ...]
    body: bytes
    is_done: bool


def read_http_answer(pieces: Sequence[tuple[float, bytes]]) -> HttpAnswer | None:
    """Read a response as far as it came.

    Args:
        pieces: In order, with their times.

    Returns:
        None where it is no HTTP response, or broke off before its headers ended.
    """
    raw = b"".join(piece for _, piece in pieces)
    head, found, _ = raw.partition(_HEAD_END)
    words = head.split(None, 2)
    if not found or len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return None
    body_start = len(head) + len(_HEAD_END)
    spans = [(body_start, len(raw))]
    if b"transfer-encoding: chunked" in head.lower():
        spans = _chunk_spans(raw, body_start)
    body = b"".join(raw[start:end] for start, end in spans)
    lines = _data_lines(body)
    times = _times_of([end for end, _ in lines], spans, pieces)
    events = tuple(
        StreamEvent(time_s, payload)
        for time_s, (_, payload) in zip(times, lines, strict=True)
        if payload != "[DONE]"
    )
    return HttpAnswer(int(words[1]), events, body, len(events) < len(lines))


def _chunk_spans(raw: bytes, start: int) -> list[tuple[int, int]]:
    """Return where a chunked body's data lies in `raw`, half-open; stops at what is no chunk.

    Source: RFC 9112, section 7.1.
    """
    spans = []
    while (line_end := raw.find(b"\r\n", start)) >= 0:
        try:
            size = int(raw[start:line_end].split(b";")[0], 16)
        except ValueError:
            break
        if size <= 0:
            break
        spans.append((line_end + 2, min(line_end + 2 + size, len(raw))))
        start = line_end + 2 + size + 2
    return spans


def _data_lines(body: bytes) -> list[tuple[int, str]]:
    """Return the offset after each whole `data:` line, and its payload."""
    found, start = [], 0
    while (end := body.find(b"\n", start)) >= 0:
        line = body[start:end]
        if line.startswith(b"data:"):
            found.append((end + 1, line[5:].decode(errors="replace").strip()))
        start = end + 1
    return found


def _times_of(
    offsets: Sequence[int],
    spans: Sequence[tuple[int, int]],
    pieces: Sequence[tuple[float, bytes]],
) -> list[float]:
    """Return when the byte before each offset of the body came."""
    body_ends = list(accumulate(end - start for start, end in spans))
    raw_ends = list(accumulate(len(piece) for _, piece in pieces))
    times = []
    for offset in offsets:
        index = bisect_left(body_ends, offset)
        raw_offset = spans[index][1] - (body_ends[index] - offset)
        times.append(pieces[bisect_right(raw_ends, raw_offset - 1)][0])
    return times
