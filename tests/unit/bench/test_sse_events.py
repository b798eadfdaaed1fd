"""HTTP responses read from pieces: whatever the cut, the same events, and never an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.bench.sse_events import read_http_answer
from tests.openai_server import DONE, OK, chunked, event

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = event("a") + event("b") + b": a comment\r\ndata:c\r\n\r\n" + DONE
PLAIN = OK + BODY
IN_CHUNKS = CHUNKED + chunked(BODY[:25]) + chunked(BODY[25:]) + b"0\r\n\r\n"


def pieces_of(raw: bytes, cuts: list[int]) -> list[tuple[float, bytes]]:
    """Cut at the offsets; piece i comes at i s."""
    ends = [*sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    starts = [0, *ends[:-1]]
    return [(float(i), raw[a:b]) for i, (a, b) in enumerate(zip(starts, ends, strict=True))]


@given(st.sampled_from([PLAIN, IN_CHUNKS]), st.lists(st.integers(0, 400), max_size=12))
def test_events_do_not_depend_on_the_cut(raw: bytes, cuts: list[int]) -> None:
    """Each has the time of the piece with its last byte."""
    pieces = pieces_of(raw, cuts)
    answer = read_http_answer(pieces)

    assert answer is not None
    assert answer.is_done
    assert [event.payload for event in answer.events][2:] == ["c"]
    for found in answer.events:
        so_far = b"".join(piece for time_s, piece in pieces if time_s <= found.time_s)
        before = b"".join(piece for time_s, piece in pieces if time_s < found.time_s)
        assert payloads(so_far) > payloads(before)


def payloads(raw: bytes) -> int:
    """Return how many events a beginning of a response has."""
    answer = read_http_answer([(0.0, raw)])
    return 0 if answer is None else len(answer.events) + answer.is_done


@given(st.binary(max_size=200), st.sampled_from([b"", OK, CHUNKED, b"HTTP/1.1 "]))
def test_any_bytes_are_read_without_an_error(noise: bytes, start: bytes) -> None:
    """What is no response is none."""
    answer = read_http_answer([(0.0, start), (1.0, noise)])

    assert answer is None or answer.status >= 0


@pytest.mark.parametrize("end", [0, 5, len(OK) - 1])
def test_a_response_without_its_headers_is_none(end: int) -> None:
    """It broke off before it said anything."""
    assert read_http_answer([(0.0, OK[:end])]) is None
