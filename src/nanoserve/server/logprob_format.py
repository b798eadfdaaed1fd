"""Log-probabilities in OpenAI's words: parallel lists for completions, records for chat.

Every number is finite JSON. A token that is no text by itself, being part of a character,
is spelt by its bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nanoserve.engine.interface import TextCodec
from nanoserve.errors import InvariantError
from nanoserve.sched.step import TokenLogprobs
from nanoserve.server.answer_models import (
    ChatLogprobs,
    ChatTokenLogprob,
    ChatTopLogprob,
    CompletionLogprobs,
)

LOWEST_LOGPROB = -9999.0  # OpenAI's and vLLM's word for "never"


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token and how likely it was; None for the first of a prompt, which follows nothing."""

    token_id: int
    scores: TokenLogprobs | None


class CompletionLogprobWriter:
    """The lists of one completion, which go on from piece to piece."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._decoder = codec.decode_stream()
        self._num_chars = 0

    def write(self, tokens: Sequence[ScoredToken], text: str) -> CompletionLogprobs:
        """Return the lists of the next tokens.

        `text_offset` counts the characters that were whole before the token.

        Args:
            tokens: The next ones.
            text: What they stand for; special tokens of an echoed prompt are written out in it.
        """
        offsets = []
        start = self._num_chars
        for token in tokens:
            offsets.append(self._num_chars)
            num_chars = len(self._decoder.push(token.token_id))
            spelling = token_text(token.token_id, self._codec)
            if not num_chars and text.startswith(spelling, self._num_chars - start):
                num_chars = len(spelling)
            self._num_chars += num_chars
        return CompletionLogprobs(
            tokens=[token_text(token.token_id, self._codec) for token in tokens],
            token_logprobs=[_own_logprob(token) for token in tokens],
            top_logprobs=[self._alternatives(token) for token in tokens],
            text_offset=offsets,
        )

    def _alternatives(self, token: ScoredToken) -> dict[str, float] | None:
        """Return the likeliest tokens, and the token itself where it is none of them."""
        if token.scores is None:
            return None
        likeliest_first = [*token.scores.top, (token.token_id, token.scores.logprob)]
        found: dict[str, float] = {}
        for token_id, logprob in likeliest_first:
            found.setdefault(token_text(token_id, self._codec), finite_logprob(logprob))
        return found


def chat_logprobs(tokens: Sequence[ScoredToken], codec: TextCodec) -> ChatLogprobs:
    """Return the records of tokens of an answer."""
    return ChatLogprobs(
        content=[_record(token.scores, codec) for token in tokens if token.scores is not None],
        refusal=None,
    )


def _record(scores: TokenLogprobs, codec: TextCodec) -> ChatTokenLogprob:
    return ChatTokenLogprob(
        token=token_text(scores.token_id, codec),
        logprob=finite_logprob(scores.logprob),
        bytes=list(codec.token_bytes(scores.token_id)),
        top_logprobs=[
            ChatTopLogprob(
                token=token_text(token_id, codec),
                logprob=finite_logprob(logprob),
                bytes=list(codec.token_bytes(token_id)),
            )
            for token_id, logprob in scores.top
        ],
    )


def _own_logprob(token: ScoredToken) -> float | None:
    return None if token.scores is None else finite_logprob(token.scores.logprob)


def finite_logprob(logprob: float) -> float:
    """Return a log-probability within `LOWEST_LOGPROB` and 0.

    Raises:
        InvariantError: It is not a number.
    """
    if math.isnan(logprob):
        message = "a log-probability is not a number"
        raise InvariantError(message)
    return min(max(logprob, LOWEST_LOGPROB), 0.0)


def token_text(token_id: int, codec: TextCodec) -> str:
    """Return a token's text, special tokens written out; OpenAI's `bytes:…` if it is none."""
    token_bytes = codec.token_bytes(token_id)
    try:
        return token_bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)
