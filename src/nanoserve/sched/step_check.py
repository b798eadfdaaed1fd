"""Whether a `StepResult` answers its `StepPlan`: the border where a runner is not trusted."""

from typing import TypeVar

from nanoserve.errors import InvariantError
from nanoserve.sched.step import ScheduledRequest, StepPlan, StepResult

T = TypeVar("T")


def find_answered(in_flight: tuple[StepPlan, T] | None, result: StepResult) -> tuple[StepPlan, T]:
    """Return what is in flight, a plan and what belongs to it, once `result` answers it.

    Raises:
        InvariantError: It answers another plan, or not in full; both sides are printed.
    """
    if in_flight is None or in_flight[0].step_id != result.step_id:
        expected = None if in_flight is None else in_flight[0].step_id
        message = f"the result is of step {result.step_id}; the step in flight is {expected}"
        raise InvariantError(message)
    check_answers(in_flight[0], result)
    return in_flight


def check_answers(plan: StepPlan, result: StepResult) -> None:
    """Compare a result with the plan it answers.

    Raises:
        InvariantError: A token or score is missing or left over; both sides are printed.
    """
    if len(result.sampled_token_ids) != len(plan.scheduled):
        message = (
            f"step {plan.step_id} planned {len(plan.scheduled)} requests; "
            f"the result has {len(result.sampled_token_ids)}"
        )
        raise InvariantError(message)
    for scheduled, token_id in zip(plan.scheduled, result.sampled_token_ids, strict=True):
        num_scores = len(result.prompt_logprobs.get(scheduled.request_id, ()))
        if scheduled.request_id in result.failed:
            problem = None if token_id is None else f"it failed, the sampled token is {token_id}"
        else:
            problem = _find_problem(scheduled, token_id, num_scores)
        if problem is not None:
            message = f"request {scheduled.request_id!r} in step {plan.step_id}: {problem}"
            raise InvariantError(message)


def _find_problem(scheduled: ScheduledRequest, token_id: int | None, num_scores: int) -> str | None:
    if scheduled.samples != (token_id is not None):
        return f"samples is {scheduled.samples}, the sampled token is {token_id}"
    if num_scores != len(scheduled.scored_token_ids):
        return f"{len(scheduled.scored_token_ids)} tokens to score, {num_scores} scores"
    return None
