"""`step_check`: results that do not answer their plan."""

import pytest

from nanoserve.errors import InvariantError
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepPlan, StepResult, TokenLogprobs
from nanoserve.sched.step_check import check_answers


def plan_of(*, samples: bool = True, scored_token_ids: tuple[int, ...] = ()) -> StepPlan:
    scheduled = ScheduledRequest(
        "r", (1, 2), 0, (0,), SamplingParams(), 0, samples, scored_token_ids
    )
    return StepPlan(7, (scheduled,))


def test_a_full_answer_passes() -> None:
    """A token where one was asked for and a score for every scored token."""
    check_answers(
        plan_of(scored_token_ids=(2,)), StepResult(7, (5,), {"r": (TokenLogprobs(2, -1.0),)})
    )


def test_a_missing_row_is_an_error() -> None:
    """The result has one entry per scheduled request."""
    with pytest.raises(InvariantError, match="planned 1 requests; the result has 0"):
        check_answers(plan_of(), StepResult(7, (), {}))


@pytest.mark.parametrize(("samples", "token_id"), [(True, None), (False, 5)])
def test_a_token_comes_exactly_where_it_was_asked_for(samples: bool, token_id: int | None) -> None:
    """Neither a missing nor an uncalled-for token passes."""
    with pytest.raises(InvariantError, match=f"samples is {samples}.*{token_id}"):
        check_answers(plan_of(samples=samples), StepResult(7, (token_id,), {}))


def test_a_missing_score_is_an_error() -> None:
    """Every scored token has its score."""
    with pytest.raises(InvariantError, match="1 tokens to score, 0 scores"):
        check_answers(plan_of(scored_token_ids=(2,)), StepResult(7, (5,), {}))


def test_a_failed_request_owes_neither_token_nor_scores() -> None:
    """What was asked of it cannot be given."""
    check_answers(plan_of(scored_token_ids=(2,)), StepResult(7, (None,), {}, failed={"r": "NaN"}))


def test_a_token_of_a_failed_request_is_an_error() -> None:
    """A request has a token or a problem, not both."""
    with pytest.raises(InvariantError, match="it failed, the sampled token is 5"):
        check_answers(plan_of(), StepResult(7, (5,), {}, failed={"r": "NaN"}))
