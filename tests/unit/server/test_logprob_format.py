"""Log-probabilities in OpenAI's words."""

import math

import pytest

from nanoserve.errors import InvariantError
from nanoserve.sched.step import TokenLogprobs
from nanoserve.server.logprob_format import (
    CompletionLogprobWriter,
    ScoredToken,
    chat_logprobs,
    finite_logprob,
    token_text,
)
from tests.fakes import ByteDecodeStream, ByteTokenizer

CODEC = ByteTokenizer()
SPECIAL_ID = 1


class SilentStream(ByteDecodeStream):
    """Leaves the special token out of the text."""

    def push(self, token_id: int) -> str:
        return "" if token_id == SPECIAL_ID else super().push(token_id)


class SpecialTokenizer(ByteTokenizer):
    """Has one special token, `<s>`."""

    def decode_stream(self) -> ByteDecodeStream:
        return SilentStream()

    def token_bytes(self, token_id: int) -> bytes:
        return b"<s>" if token_id == SPECIAL_ID else super().token_bytes(token_id)


def scored(text: bytes, *top: tuple[int, float]) -> list[ScoredToken]:
    return [ScoredToken(byte, TokenLogprobs(byte, -0.5, top)) for byte in text]


def test_completion_lists_go_on_from_piece_to_piece() -> None:
    """Offsets count the whole characters before a token, over all pieces."""
    writer = CompletionLogprobWriter(CODEC)

    first = writer.write(scored("až".encode()), "až")
    second = writer.write(scored(b"b"), "b")

    assert first.tokens == ["a", "bytes:\\xc5", "bytes:\\xbe"]
    assert first.text_offset + second.text_offset == [0, 1, 1, 2]
    assert second.token_logprobs == [-0.5]


@pytest.mark.parametrize(
    ("echo", "offsets"),
    [("ž<s>b", [0, 0, 1, 4]), ("žb", [0, 0, 1, 1])],
)
def test_offsets_count_special_tokens_that_an_echo_writes_out(
    echo: str, offsets: list[int]
) -> None:
    """A prompt sent as text shows them; of one sent as ids, or of an answer, they are no text."""
    writer = CompletionLogprobWriter(SpecialTokenizer())
    prompt = [*"ž".encode(), SPECIAL_ID, ord("b")]

    first = writer.write([ScoredToken(token_id, None) for token_id in prompt], echo)
    second = writer.write(scored(bytes([SPECIAL_ID, ord("c")])), "c")

    assert first.text_offset == offsets
    assert second.text_offset == [len(echo)] * 2


def test_token_stands_among_its_alternatives() -> None:
    """The likeliest come first; the token itself is added where it is none of them."""
    writer = CompletionLogprobWriter(CODEC)

    tokens = [*scored(b"a", (98, -0.1)), *scored(b"a", (97, -0.5), (98, -0.6))]
    body = writer.write(tokens, "aa")

    assert body.top_logprobs == [{"b": -0.1, "a": -0.5}, {"a": -0.5, "b": -0.6}]


def test_first_token_of_a_prompt_has_nulls() -> None:
    """It follows nothing, so nothing can be said of it."""
    body = CompletionLogprobWriter(CODEC).write([ScoredToken(97, None)], "a")

    assert (body.tokens, body.token_logprobs, body.top_logprobs) == (["a"], [None], [None])


def test_chat_records_hold_bytes() -> None:
    """A part of a character has bytes, and a spelling of them as its text."""
    body = chat_logprobs(scored(b"\xc5", (97, -math.inf)), CODEC)

    assert body.model_dump() == {
        "content": [
            {
                "token": "bytes:\\xc5",
                "logprob": -0.5,
                "bytes": [197],
                "top_logprobs": [{"token": "a", "logprob": -9999.0, "bytes": [97]}],
            }
        ],
        "refusal": None,
    }


@pytest.mark.parametrize(
    ("logprob", "shown"), [(-math.inf, -9999.0), (-1e9, -9999.0), (1e-9, 0.0), (-2.5, -2.5)]
)
def test_numbers_are_finite(logprob: float, shown: float) -> None:
    """Between -9999 and 0, whatever the model says."""
    assert finite_logprob(logprob) == shown


def test_nan_is_our_mistake() -> None:
    """It never reaches a body."""
    with pytest.raises(InvariantError):
        finite_logprob(math.nan)


def test_token_text_is_utf8_or_bytes() -> None:
    """OpenAI's spelling of what is no text."""
    assert token_text(65, CODEC) == "A"
    assert token_text(255, CODEC) == "bytes:\\xff"
