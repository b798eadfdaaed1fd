"""The answers of one call as they grow."""

import pytest

from nanoserve.engine.interface import OutputDelta
from nanoserve.errors import EngineError, EngineStoppedError
from nanoserve.sched.step import FinishReason
from nanoserve.server.answer import Answer, Piece
from tests.builders import make_request


def test_pieces_are_kept_by_choice() -> None:
    """Text, reason and counts go to the choice of the request."""
    answer = Answer([make_request("a", "xy"), make_request("b", "xy")], choices_per_prompt=2)

    pieces = [
        answer.take(OutputDelta("b", "hel", (1, 2))),
        answer.take(OutputDelta("a", "", (3,))),
        answer.take(OutputDelta("b", "lo", (4,), FinishReason.STOP)),
    ]

    assert pieces == [
        Piece(1, "hel", None),
        Piece(0, "", None),
        Piece(1, "lo", FinishReason.STOP),
    ]
    assert [choice.text for choice in answer.choices] == ["", "hello"]
    assert answer.choices[1].finish_reason is FinishReason.STOP


def test_usage_counts_each_prompt_once() -> None:
    """With n=2, prompts and prefix hits count once, outputs for every choice."""
    requests = [
        make_request(name, prompt)
        for name, prompt in zip("abcd", ["xy"] * 2 + ["z"] * 2, strict=True)
    ]
    answer = Answer(requests, choices_per_prompt=2)
    for name, cached in zip("abcd", (1, 2, 0, 1), strict=True):
        answer.take(
            OutputDelta(name, "t", (1, 2, 3), FinishReason.LENGTH, num_cached_tokens=cached)
        )

    usage = answer.usage()

    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 12, 15)
    assert usage.prompt_tokens_details.cached_tokens == 1


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(FinishReason.ERROR, EngineError), (FinishReason.ABORT, EngineStoppedError)],
)
def test_cut_answer_is_an_error(reason: FinishReason, kind: type[EngineError]) -> None:
    """A failed or aborted request never looks complete."""
    answer = Answer([make_request("a")], choices_per_prompt=1)

    with pytest.raises(kind, match="why"):
        answer.take(OutputDelta("a", "", (), reason, error="why"))
