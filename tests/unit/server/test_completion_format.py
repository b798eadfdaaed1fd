"""Completions in OpenAI's words."""

from nanoserve.sched.step import FinishReason, TokenLogprobs
from nanoserve.server.answer import Piece
from nanoserve.server.answer_head import AnswerHead
from nanoserve.server.answer_models import PromptTokensDetails, Usage
from nanoserve.server.completion_format import CompletionFormat
from nanoserve.server.logprob_format import ScoredToken
from tests.fakes import ByteTokenizer

HEAD = AnswerHead("id-1", 17, "m")


def words(has_logprobs: bool = False) -> CompletionFormat:
    return CompletionFormat(HEAD, ByteTokenizer(), has_logprobs)


def test_chunk_is_skipped_when_it_says_nothing() -> None:
    """A piece without text and end makes no chunk; an end without text does."""
    format_ = words()

    assert list(format_.chunks(Piece(0, "", None))) == []
    (chunk,) = format_.chunks(Piece(0, "", FinishReason.STOP))
    assert chunk.model_dump(exclude_unset=True) == {
        "id": "id-1",
        "object": "text_completion",
        "created": 17,
        "model": "m",
        "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}],
    }
    assert list(format_.opening(2)) == []


def test_logprobs_wait_for_text() -> None:
    """Tokens whose text is held back come with the chunk that shows it, choice by choice."""
    format_ = words(has_logprobs=True)
    tokens = [ScoredToken(byte, TokenLogprobs(byte, -1.0)) for byte in "ž".encode()]

    assert list(format_.chunks(Piece(1, "", None, (tokens[0],)))) == []
    assert list(format_.chunks(Piece(0, "", None, (tokens[0],)))) == []
    (chunk,) = format_.chunks(Piece(1, "ž", None, (tokens[1],)))
    (end,) = format_.chunks(Piece(1, "", FinishReason.LENGTH))

    logprobs = chunk.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["bytes:\\xc5", "bytes:\\xbe"]
    assert end.choices[0].logprobs is not None
    assert end.choices[0].logprobs.tokens == []


def test_usage_chunk_has_no_choices() -> None:
    """Usage travels alone."""
    details = PromptTokensDetails(cached_tokens=0)
    usage = Usage(
        prompt_tokens=1, completion_tokens=2, total_tokens=3, prompt_tokens_details=details
    )

    chunk = words().closing(usage)

    assert (chunk.choices, chunk.usage) == ([], usage)
