"""`request`: what a request computes and scores next, and when it ends."""

import pytest

from nanoserve.sched.request import Request
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import FinishReason


def make_request(num_prompt_tokens: int = 10, *, scores: bool = False) -> Request:
    sampling = SamplingParams(max_tokens=3, num_prompt_logprobs=0 if scores else None)
    return Request(
        "r", tuple(range(num_prompt_tokens)), sampling, seed=1, stop_token_ids=frozenset({99})
    )


def test_a_chunk_is_what_is_left_within_the_budget() -> None:
    """A prefill takes the budget until its last chunk."""
    request = make_request()
    request.num_computed_tokens = 4

    assert (request.chunk_len(5), request.chunk_len(50)) == (5, 6)


def test_only_the_chunk_that_ends_the_tokens_samples() -> None:
    """A chunk in the middle of a prompt yields no token."""
    request = make_request()

    assert not request.to_scheduled(9).samples
    assert request.to_scheduled(10).samples


def test_a_plan_is_a_copy() -> None:
    """What happens to the request later does not change a plan that was made."""
    request = make_request()
    request.block_table = [3, 4]
    scheduled = request.to_scheduled(10)

    request.block_table.clear()

    assert scheduled.block_table == (3, 4)
    assert scheduled.token_ids == tuple(range(10))


def test_scored_tokens_follow_the_scheduled_ones() -> None:
    """Each token is paired with its successor; the last of the prompt has none."""
    request = make_request(scores=True)

    assert request.to_scheduled(4).scored_token_ids == (1, 2, 3, 4)
    assert request.to_scheduled(10).scored_token_ids == tuple(range(1, 10))


def test_a_request_that_does_not_score_has_no_scored_tokens() -> None:
    """Scores are computed only where they were asked for."""
    assert make_request().to_scheduled(10).scored_token_ids == ()


def test_scoring_goes_on_where_it_stopped() -> None:
    """Chunks continue each other's scores, each token once."""
    request = make_request(scores=True)
    first = request.to_scheduled(4)

    request.advance(first)

    second = request.to_scheduled(request.chunk_len(50))
    assert first.scored_token_ids + second.scored_token_ids == tuple(range(1, 10))


def test_recomputed_tokens_are_not_scored_again() -> None:
    """After a restart a chunk ends where scoring stopped, and scores nothing."""
    request = make_request(scores=True)
    request.advance(request.to_scheduled(4))
    request.num_computed_tokens = 0

    again = request.to_scheduled(request.chunk_len(50))

    assert len(again.token_ids) == 4
    assert again.scored_token_ids == ()


def test_a_prefix_hit_leaves_one_token_to_compute() -> None:
    """The last token is always computed: its row gives the next token."""
    assert make_request().max_hit_tokens == 9


def test_a_prefix_hit_covers_no_token_that_is_still_to_be_scored() -> None:
    """A scoring request takes no hit at first, and only what was scored later."""
    request = make_request(scores=True)

    assert request.max_hit_tokens == 0
    request.advance(request.to_scheduled(4))
    assert request.max_hit_tokens == 4


def test_a_scored_prompt_is_like_any_other() -> None:
    """Once every prompt token is scored, hits and chunks are free again."""
    request = make_request(scores=True)
    request.advance(request.to_scheduled(10))
    request.num_computed_tokens = 0

    assert request.max_hit_tokens == 9
    assert request.chunk_len(50) == 10


@pytest.mark.parametrize(
    ("token_ids", "reasons"),
    [
        ([1, 2, 3], [None, None, FinishReason.LENGTH]),
        ([1, 99], [None, FinishReason.STOP]),
        ([1, 2, 99], [None, None, FinishReason.STOP]),
    ],
)
def test_a_stop_id_or_the_last_token_ends_a_request(
    token_ids: list[int], reasons: list[FinishReason | None]
) -> None:
    """A stop id on the last token counts as a stop."""
    request = make_request()

    assert [request.append_token(token_id) for token_id in token_ids] == reasons
    assert request.output_token_ids == token_ids


@pytest.mark.parametrize(
    "penalty",
    [{"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"repetition_penalty": 1.1}],
)
def test_a_draw_with_a_penalty_is_told_the_history(penalty: dict[str, float]) -> None:
    """Prompt and output so far; what comes later does not change it."""
    request = Request("r", (1, 2), SamplingParams(**penalty), seed=0)  # type: ignore[arg-type]
    request.append_token(3)
    history = request.to_scheduled(3).history

    request.append_token(4)

    assert history is not None
    assert (list(history), history.num_prompt_tokens) == ([1, 2, 3], 2)
    assert request.to_scheduled(1).history is None


def test_a_draw_without_penalties_needs_no_history() -> None:
    """Neutral penalties cost nothing."""
    assert make_request().to_scheduled(10).history is None


def test_stop_ids_are_banned_while_the_output_is_too_short() -> None:
    """The ban ends with the least number of tokens."""
    sampling = SamplingParams(min_tokens=1)
    request = Request("r", (1, 2), sampling, seed=0, stop_token_ids=frozenset({9, 4}))

    assert request.to_scheduled(1).banned_token_ids == ()
    assert request.to_scheduled(2).banned_token_ids == (4, 9)
    request.append_token(3)
    assert request.to_scheduled(3).banned_token_ids == ()
