"""`step`: what the messages say about themselves."""

from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepPlan


def test_a_plan_counts_its_tokens() -> None:
    """Decodes and chunks add up to the step; context is what lies in the pool afterwards."""
    sampling = SamplingParams()
    decode = ScheduledRequest("a", (9,), 6, (0, 1), sampling, seed=0, samples=True)
    chunk = ScheduledRequest("b", (1, 2, 3), 4, (2, 3), sampling, seed=0, samples=False)

    plan = StepPlan(0, (decode, chunk))

    assert (plan.num_tokens, plan.is_empty) == (4, False)
    assert (decode.context_len, chunk.context_len) == (7, 7)
    assert chunk.num_scheduled_tokens == 3


def test_a_plan_of_nothing_is_empty() -> None:
    """A plan may hold preemptions and still compute nothing."""
    assert StepPlan(0, (), preempted=("a",)).is_empty
