"""Answers in OpenAI's words."""

import pytest

from nanoserve.sched.step import FinishReason
from nanoserve.server.answer import Piece
from nanoserve.server.answer_models import PromptTokensDetails, Usage, wire_reason
from nanoserve.server.chat_format import ChatFormat
from nanoserve.server.completion_format import CompletionFormat

USAGE = Usage(
    prompt_tokens=1,
    completion_tokens=2,
    total_tokens=3,
    prompt_tokens_details=PromptTokensDetails(cached_tokens=0),
)
HEAD = ("id-1", 17, "m")


def test_completion_chunk_is_skipped_when_it_says_nothing() -> None:
    """A piece without text and end makes no chunk; an end without text does."""
    words = CompletionFormat(*HEAD)

    assert list(words.chunks(Piece(0, "", None))) == []
    (chunk,) = words.chunks(Piece(0, "", FinishReason.STOP))
    assert chunk.model_dump(exclude_unset=True) == {
        "id": "id-1",
        "object": "text_completion",
        "created": 17,
        "model": "m",
        "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}],
    }
    assert list(words.opening(2)) == []


def test_chat_end_is_a_chunk_of_its_own() -> None:
    """The last text comes before an empty delta with the reason."""
    words = ChatFormat(*HEAD)

    chunks = [
        chunk.model_dump(exclude_unset=True)["choices"][0]
        for chunk in words.chunks(Piece(1, "hi", FinishReason.LENGTH))
    ]

    assert chunks == [
        {"index": 1, "delta": {"content": "hi"}, "logprobs": None, "finish_reason": None},
        {"index": 1, "delta": {}, "logprobs": None, "finish_reason": "length"},
    ]
    assert list(words.chunks(Piece(0, "", None))) == []


def test_each_chat_choice_is_opened() -> None:
    """Every choice starts with its role."""
    opened = [chunk.choices[0] for chunk in ChatFormat(*HEAD).opening(3)]

    assert [choice.index for choice in opened] == [0, 1, 2]
    assert {choice.delta.role for choice in opened} == {"assistant"}


@pytest.mark.parametrize("words", [CompletionFormat(*HEAD), ChatFormat(*HEAD)])
def test_usage_chunk_has_no_choices(words: CompletionFormat | ChatFormat) -> None:
    """Usage travels alone."""
    chunk = words.closing(USAGE)

    assert (chunk.choices, chunk.usage) == ([], USAGE)


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_cut_answer_has_no_reason(reason: FinishReason) -> None:
    """No word on the wire makes a cut answer look whole."""
    with pytest.raises(ValueError, match=reason.value):
        wire_reason(reason)
