"""The answers of one call as they grow."""

import pytest

from nanoserve.engine.interface import GenerationRequest, OutputDelta
from nanoserve.errors import EngineError, EngineStoppedError
from nanoserve.sched.step import FinishReason, TokenLogprobs
from nanoserve.server.answer import Answer, Piece
from nanoserve.server.logprob_format import ScoredToken
from tests.builders import make_request


def requests(*names: str, prompt: str = "xy") -> list[GenerationRequest]:
    return [make_request(name, prompt) for name in names]


def test_pieces_are_kept_by_choice() -> None:
    """Text, reason and counts go to the choice of the request."""
    answer = Answer(requests("a", "b"), samples_per_prompt=2)

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
    answer = Answer([*requests("a", "b"), *requests("c", "d", prompt="z")], samples_per_prompt=2)
    for name, cached in zip("abcd", (1, 2, 0, 1), strict=True):
        answer.take(
            OutputDelta(name, "t", (1, 2, 3), FinishReason.LENGTH, num_cached_tokens=cached)
        )

    usage = answer.usage()

    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 12, 15)
    assert usage.prompt_tokens_details.cached_tokens == 1


def test_echo_begins_the_first_piece() -> None:
    """The prompt's text and tokens go before the first delta's, once."""
    answer = Answer(requests("a"), samples_per_prompt=1, echoes=["xy"])
    scores = {token_id: TokenLogprobs(token_id, -1.0) for token_id in (ord("y"), 1, 2)}

    first = answer.take(
        OutputDelta("a", "", (1,), logprobs=(scores[1],), prompt_logprobs=(None, scores[ord("y")]))
    )
    second = answer.take(OutputDelta("a", "b", (2,), logprobs=(scores[2],)))

    assert (first.text, second.text) == ("xy", "b")
    assert first.tokens == (
        ScoredToken(ord("x"), None),
        ScoredToken(ord("y"), scores[ord("y")]),
        ScoredToken(1, scores[1]),
    )
    assert answer.choices[0].tokens == [*first.tokens, ScoredToken(2, scores[2])]


def test_best_are_the_likeliest_per_token() -> None:
    """Of each prompt's samples, a long likely answer beats a short unlikely one."""
    answer = Answer(requests(*"abcdef"), samples_per_prompt=3, shown_per_prompt=2)
    samples: list[list[float]] = [[-2], [-1, -1, -1], [-3], [-1], [-2], [-0.5]]
    for name, logprobs in zip("abcdef", samples, strict=True):
        scores = tuple(TokenLogprobs(1, logprob) for logprob in logprobs)
        tokens = (1,) * len(scores)
        answer.take(OutputDelta(name, name, tokens, FinishReason.STOP, logprobs=scores))

    assert [choice.text for choice in answer.shown()] == ["b", "a", "f", "d"]
    assert answer.usage().completion_tokens == 8


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(FinishReason.ERROR, EngineError), (FinishReason.ABORT, EngineStoppedError)],
)
def test_cut_answer_is_an_error(reason: FinishReason, kind: type[EngineError]) -> None:
    """A failed or aborted request never looks complete."""
    answer = Answer(requests("a"), samples_per_prompt=1)

    with pytest.raises(kind, match="why"):
        answer.take(OutputDelta("a", "", (), reason, error="why"))
