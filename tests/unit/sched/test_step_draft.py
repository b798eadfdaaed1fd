"""`step_draft`: the budget of a step in the making."""

from nanoserve.sched.request import Request
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step_draft import StepDraft


def make_request(request_id: str) -> Request:
    return Request(request_id, (1, 2, 3, 4), SamplingParams(), seed=0)


def test_a_draft_keeps_order_and_budget() -> None:
    """Requests are planned in the order they were put, and pay for their tokens."""
    draft = StepDraft(budget_left=10)
    draft.put(make_request("b"), 4)
    draft.put(make_request("a"), 2)
    draft.admitted.append("a")

    plan = draft.to_plan(3)

    assert draft.budget_left == 4
    assert (plan.step_id, plan.admitted) == (3, ("a",))
    assert [(s.request_id, s.num_scheduled_tokens) for s in plan.scheduled] == [("b", 4), ("a", 2)]


def test_a_victim_leaves_the_plan_and_returns_its_tokens() -> None:
    """Dropping a scheduled request restores its share of the budget."""
    draft = StepDraft(budget_left=10)
    victim = make_request("v")
    draft.put(victim, 4)

    draft.drop(victim)

    assert draft.budget_left == 10
    assert draft.to_plan(0).scheduled == ()
    assert draft.to_plan(0).preempted == ("v",)


def test_a_victim_that_was_not_scheduled_returns_nothing() -> None:
    """A request may be preempted before its turn."""
    draft = StepDraft(budget_left=10)

    draft.drop(make_request("v"))

    assert draft.budget_left == 10


def test_prompts_have_a_budget_of_their_own() -> None:
    """A decode leaves it alone, a prompt spends it, a victim gives it back."""
    decode, prompt = make_request("d"), make_request("p")
    decode.num_computed_tokens = 3
    draft = StepDraft(budget_left=10, prompt_budget_left=3)

    draft.put(decode, 1)
    assert (draft.budget_for(decode), draft.budget_for(prompt)) == (9, 3)
    draft.put(prompt, 3)
    assert (draft.budget_for(decode), draft.prompt_room) == (6, 0)
    draft.drop(prompt)
    assert (draft.budget_for(decode), draft.prompt_room) == (9, 3)
