"""`scheduler`: who runs, who waits, who has to go, and what comes out."""

from dataclasses import replace
from typing import Any

import pytest

from nanoserve.errors import InvariantError, PromptTooLongError
from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.request import RequestStatus
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.scheduler import Scheduler
from nanoserve.sched.step import FinishReason, StepPlan, StepResult, TokenEvent
from tests.fakes import FakeRunner
from tests.sched_driver import SchedDriver

NO_STOP = SamplingParams(max_tokens=8, ignore_eos=True)


LIMITS = EngineLimits(
    num_blocks=64,
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=32,
    max_model_len=100,
    vocab_size=256,
)


def driver_with(**changes: Any) -> SchedDriver:
    return SchedDriver(replace(LIMITS, **changes))


def prompt_of(length: int, first: int = 0) -> list[int]:
    return [(first * 41 + index) % 256 for index in range(length)]


def lengths(plan: StepPlan) -> dict[str, int]:
    return {scheduled.request_id: scheduled.num_scheduled_tokens for scheduled in plan.scheduled}


def test_an_idle_scheduler_plans_nothing() -> None:
    """Without work a plan is empty."""
    scheduler = driver_with().scheduler

    assert not scheduler.has_work
    assert scheduler.schedule().is_empty


def test_a_request_runs_to_its_last_token() -> None:
    """One prefill step and one step for each further token; then every block is given back."""
    driver = driver_with(enable_prefix_caching=False)
    driver.add("a", prompt_of(10), NO_STOP)

    driver.drain()

    assert [plan.num_tokens for plan in driver.plans] == [10] + [1] * 7
    assert driver.outputs["a"] == FakeRunner().continuation(prompt_of(10), 8)
    assert driver.reasons == {"a": FinishReason.LENGTH}
    assert driver.scheduler.num_free_blocks == 64


def test_a_long_prompt_is_computed_in_chunks() -> None:
    """Chunks fill the token budget; only the last one samples."""
    driver = driver_with(max_num_batched_tokens=16)
    driver.add("a", prompt_of(40), NO_STOP)

    plans = [driver.step() for _ in range(3)]

    assert [lengths(plan)["a"] for plan in plans] == [16, 16, 8]
    assert [plan.scheduled[0].samples for plan in plans] == [False, False, True]


def test_decodes_and_prefill_chunks_share_a_step_decodes_first() -> None:
    """A new prompt takes what running decodes leave of the budget."""
    driver = driver_with(max_num_batched_tokens=16)
    driver.add("a", prompt_of(10), NO_STOP)
    driver.step()
    driver.add("b", prompt_of(40, 1), NO_STOP)

    plan = driver.step()

    assert list(lengths(plan).items()) == [("a", 1), ("b", 15)]


def test_a_running_prefill_goes_on_before_anyone_is_admitted() -> None:
    """Prefills continue in order of age; a newcomer gets the rest."""
    driver = driver_with(max_num_batched_tokens=16)
    driver.add("a", prompt_of(20), NO_STOP)
    driver.add("b", prompt_of(20, 1), NO_STOP)
    driver.step()

    plan = driver.step()

    assert list(lengths(plan).items()) == [("a", 4), ("b", 12)]


def test_a_prefill_waits_while_an_older_one_takes_the_budget() -> None:
    """A running request may be left out of a step when no token is left for it."""
    driver = driver_with(max_num_batched_tokens=16)
    driver.add("a", prompt_of(20), NO_STOP)
    driver.add("b", prompt_of(40, 1), NO_STOP)
    driver.add("c", prompt_of(40, 2), NO_STOP)
    driver.step()
    driver.step()
    driver.step()

    plan = driver.step()

    assert list(lengths(plan).items()) == [("a", 1), ("b", 13), ("c", 2)]


def test_no_more_than_max_num_seqs_run() -> None:
    """A request waits for a place however small it is."""
    driver = driver_with(max_num_seqs=2)
    for name in "abc":
        driver.add(name, [1], NO_STOP)

    driver.step()

    assert (driver.scheduler.num_running, driver.scheduler.num_waiting) == (2, 1)


def test_the_head_of_the_queue_is_not_skipped() -> None:
    """A small request behind a big one waits, although it would fit."""
    driver = driver_with(num_blocks=10)
    driver.add("running", prompt_of(20), NO_STOP)
    driver.add("big", prompt_of(24, 1), NO_STOP)
    driver.add("small", [1], NO_STOP)

    plan = driver.step()

    assert list(lengths(plan)) == ["running"]
    assert driver.scheduler.num_waiting == 2


def test_a_prompt_is_admitted_only_if_all_of_it_has_room() -> None:
    """Blocks for the whole prompt must be available, not just for its first chunk."""
    driver = driver_with(num_blocks=10, max_num_batched_tokens=8, enable_prefix_caching=False)
    driver.add("a", prompt_of(10), SamplingParams(max_tokens=3, ignore_eos=True))
    driver.add("b", prompt_of(32, 1), SamplingParams(max_tokens=1))

    driver.drain()

    assert [list(lengths(plan)) for plan in driver.plans[:5]] == [["a"]] * 4 + [["b"]]
    assert driver.scheduler.num_preemptions == 0


def test_the_youngest_is_preempted_and_ends_as_if_undisturbed() -> None:
    """When blocks run out the last to come goes back to the queue and is recomputed later."""
    driver = driver_with(num_blocks=6, max_model_len=24)
    for index, name in enumerate("ab"):
        driver.add(name, prompt_of(10, index), NO_STOP)

    driver.drain()

    preempted = [name for plan in driver.plans for name in plan.preempted]
    assert preempted == ["b"]
    assert driver.scheduler.num_preemptions == 1
    assert driver.outputs["b"] == FakeRunner().continuation(prompt_of(10, 1), 8)


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    """A victim that could come back at once, by a hit on its neighbour's blocks, waits a step."""
    driver = driver_with(num_blocks=6, max_num_batched_tokens=12)
    driver.add("a", prompt_of(8), NO_STOP)
    driver.add("b", prompt_of(16), SamplingParams(max_tokens=1))

    plans = [driver.step() for _ in range(3)]

    assert [plan.preempted for plan in plans] == [(), ("b",), ()]
    assert [lengths(plan) for plan in plans] == [{"a": 8, "b": 4}, {"a": 1}, {"a": 1, "b": 8}]
    assert driver.num_cached["b"] == 0


def test_a_preempted_request_holds_nothing() -> None:
    """Its blocks are given back and none of its tokens count as computed."""
    driver = driver_with(num_blocks=6, max_model_len=24)
    for index, name in enumerate("ab"):
        driver.add(name, prompt_of(10, index), NO_STOP)
    while not driver.scheduler.num_preemptions:
        driver.step()

    request = driver.scheduler.request("b")

    assert request is not None
    assert request.status is RequestStatus.PREEMPTED
    assert (request.block_table, request.num_computed_tokens) == ([], 0)


def test_a_preempted_request_is_first_in_the_queue() -> None:
    """Age decides: who was preempted runs again before anyone who came later."""
    driver = driver_with(num_blocks=6, max_model_len=24, max_num_seqs=2)
    for index, name in enumerate("abc"):
        driver.add(name, prompt_of(10, index), NO_STOP)

    driver.drain()

    assert list(driver.reasons) == ["a", "b", "c"]


def test_a_victim_already_in_the_plan_is_taken_out() -> None:
    """An older prefill that lacks the block a younger decode has just been given gets it back.

    A restarted scoring prompt leaves budget to a newcomer, which is how a decode can be
    younger than a prefill.
    """
    driver = driver_with(
        num_blocks=6, max_num_batched_tokens=12, max_num_seqs=2, enable_prefix_caching=False
    )
    driver.add("a", prompt_of(8), SamplingParams(max_tokens=2))
    driver.add("b", prompt_of(16, 1), SamplingParams(max_tokens=4, num_prompt_logprobs=0))
    driver.add("c", prompt_of(8, 2), NO_STOP)

    plans = [driver.step() for _ in range(4)]

    assert [plan.preempted for plan in plans] == [(), ("b",), (), ("c",)]
    assert [lengths(plan) for plan in plans[2:]] == [{"b": 4, "c": 8}, {"b": 11}]
    driver.drain()
    assert driver.outputs["c"] == FakeRunner().continuation(prompt_of(8, 2), 8)


def test_a_shared_prefix_is_computed_once() -> None:
    """A later request takes the whole blocks of a prompt it shares, less its last token."""
    driver = driver_with()
    driver.add("a", prompt_of(20), NO_STOP)
    driver.drain()
    driver.add("b", prompt_of(20), NO_STOP)

    assert driver.scheduler.num_cached_blocks == 6
    plan = driver.step()

    assert lengths(plan) == {"b": 4}
    assert driver.num_cached == {"a": 0, "b": 16}


def test_a_follow_up_finds_the_blocks_of_the_answer() -> None:
    """Output blocks are cached as well: the next turn of a chat reuses them."""
    driver = driver_with()
    driver.add("a", prompt_of(8), NO_STOP)
    driver.drain()
    driver.add("b", [*prompt_of(8), *driver.outputs["a"], 1, 2], NO_STOP)

    driver.step()

    assert driver.num_cached["b"] == 12


@pytest.mark.parametrize(("salt", "num_cached"), [(b"one", 16), (b"two", 0)])
def test_a_salt_keeps_clients_apart(salt: bytes, num_cached: int) -> None:
    """A prefix is reused only within its salt."""
    driver = driver_with()
    driver.add("a", prompt_of(20), NO_STOP, salt=b"one")
    driver.drain()
    driver.add("b", prompt_of(20), NO_STOP, salt=salt)

    driver.step()

    assert driver.num_cached["b"] == num_cached


def test_no_hit_covers_a_block_that_was_only_planned() -> None:
    """Requests that arrive together compute their prompts each; nothing is shared too early."""
    driver = driver_with(max_num_batched_tokens=100)
    for name in "ab":
        driver.add(name, prompt_of(20), NO_STOP)

    plan = driver.step()

    assert lengths(plan) == {"a": 20, "b": 20}


def test_cached_tokens_are_counted_at_first_admission_only() -> None:
    """Blocks found again after preemption are the server's affair, not the client's."""
    driver = driver_with(num_blocks=6, max_model_len=24)
    for index, name in enumerate("ab"):
        driver.add(name, prompt_of(10, index), NO_STOP)

    driver.drain()

    assert driver.scheduler.num_preemptions > 0
    assert driver.num_cached == {"a": 0, "b": 0}


def test_a_scoring_prompt_takes_no_hit_and_is_scored_once() -> None:
    """Every prompt token but the first is scored exactly once, in order."""
    driver = driver_with(max_num_batched_tokens=8)
    driver.add("a", prompt_of(20), NO_STOP)
    driver.drain()
    driver.add("b", prompt_of(20), SamplingParams(max_tokens=2, num_prompt_logprobs=0))
    driver.drain()

    scored = [
        token_id
        for plan in driver.plans
        for scheduled in plan.scheduled
        for token_id in scheduled.scored_token_ids
    ]
    assert scored == prompt_of(20)[1:]
    assert driver.num_cached["b"] == 0


def test_the_models_stop_id_ends_an_answer() -> None:
    """The event carries the stop id, which is part of the output."""
    first, second, third = FakeRunner().continuation(prompt_of(5), 3)
    driver = driver_with(eos_token_ids=frozenset({second}))
    driver.add("plain", prompt_of(5), SamplingParams(max_tokens=8))
    driver.add("own", prompt_of(5), SamplingParams(ignore_eos=True, stop_token_ids=(third,)))

    driver.drain()

    assert driver.outputs == {"plain": [first, second], "own": [first, second, third]}
    assert set(driver.reasons.values()) == {FinishReason.STOP}


def test_a_stop_event_names_the_stop_id() -> None:
    """`stop_token_id` is set on a stop and on nothing else."""
    (token_id,) = FakeRunner().continuation(prompt_of(5), 1)
    driver = driver_with()
    driver.add("a", prompt_of(5), SamplingParams(stop_token_ids=(token_id,)))
    driver.add("b", prompt_of(5), SamplingParams(max_tokens=1))

    events = driver.scheduler.apply(driver.runner.execute(driver.plan()))

    assert events == [
        TokenEvent("a", token_id, FinishReason.STOP, token_id),
        TokenEvent("b", token_id, FinishReason.LENGTH),
    ]


def test_a_request_is_readable_until_the_next_step_is_planned() -> None:
    """Whoever takes in the last event can still ask for the request's numbers."""
    driver = driver_with()
    driver.add("a", prompt_of(5), SamplingParams(max_tokens=1))
    driver.step()

    request = driver.scheduler.request("a")

    assert request is not None
    assert request.status is RequestStatus.FINISHED
    driver.plan()
    assert driver.scheduler.request("a") is None


def test_abort_ends_a_waiting_request() -> None:
    """A queued request leaves the queue with one event."""
    scheduler = driver_with().scheduler
    scheduler.add("a", [1], NO_STOP)

    assert scheduler.abort("a") == TokenEvent("a", None, FinishReason.ABORT)
    assert not scheduler.has_work
    assert scheduler.abort("a") is None


def test_abort_releases_the_blocks_of_a_running_request_at_once() -> None:
    """No step is needed to get the blocks back; the reason is the caller's."""
    driver = driver_with(enable_prefix_caching=False)
    driver.add("a", prompt_of(20), NO_STOP)
    driver.step()
    assert driver.scheduler.num_used_blocks == 5

    event = driver.scheduler.abort("a", FinishReason.STOP)

    assert event == TokenEvent("a", None, FinishReason.STOP)
    assert driver.scheduler.num_used_blocks == 0


def test_abort_ends_a_preempted_request() -> None:
    """A request that was sent back to the queue can be ended there."""
    driver = driver_with(num_blocks=6, max_model_len=24)
    for index, name in enumerate("ab"):
        driver.add(name, prompt_of(10, index), NO_STOP)
    while not driver.scheduler.num_preemptions:
        driver.step()

    driver.abort("b")

    assert driver.reasons["b"] is FinishReason.ABORT
    driver.drain()
    assert driver.outputs["a"] == FakeRunner().continuation(prompt_of(10), 8)


def test_a_request_aborted_while_its_step_runs_gets_no_second_event() -> None:
    """What the step found for it is dropped, even if its id is in use again."""
    driver = driver_with()
    driver.add("a", prompt_of(5), NO_STOP)
    driver.add("b", prompt_of(5, 1), NO_STOP)
    result = driver.runner.execute(driver.plan())
    driver.scheduler.abort("a")
    driver.scheduler.add("a", prompt_of(7), NO_STOP)

    events = driver.scheduler.apply(result)

    assert [event.request_id for event in events] == ["b"]
    driver.scheduler.check_integrity()


def test_a_plan_that_was_not_applied_is_planned_again() -> None:
    """A failed step loses nothing: the same tokens are scheduled once more."""
    driver = driver_with()
    driver.add("a", prompt_of(20), NO_STOP)
    lost = driver.plan()

    again = driver.plan()

    assert again.scheduled == lost.scheduled
    with pytest.raises(InvariantError, match="result is of step 0; the step in flight is 1"):
        driver.scheduler.apply(driver.runner.execute(lost))


def test_a_result_without_a_plan_is_refused() -> None:
    """Nothing is in flight before the first plan, and nothing after a result was applied."""
    driver = driver_with()
    with pytest.raises(InvariantError, match="in flight is None"):
        driver.scheduler.apply(StepResult(0, (), {}))

    driver.add("a", [1], NO_STOP)
    result = driver.runner.execute(driver.plan())
    driver.scheduler.apply(result)
    with pytest.raises(InvariantError, match="in flight is None"):
        driver.scheduler.apply(result)


def test_a_result_that_does_not_answer_changes_nothing() -> None:
    """After a refused result the right one is still taken."""
    driver = driver_with()
    driver.add("a", [1], NO_STOP)
    plan = driver.plan()
    with pytest.raises(InvariantError):
        driver.scheduler.apply(StepResult(plan.step_id, (None,), {}))

    driver.apply(driver.runner.execute(plan))

    assert len(driver.outputs["a"]) == 1


def test_what_cannot_be_served_is_never_queued() -> None:
    """`add` refuses like the door does."""
    scheduler = driver_with(max_model_len=10).scheduler

    with pytest.raises(PromptTooLongError):
        scheduler.add("a", prompt_of(9), SamplingParams(max_tokens=2))

    assert not scheduler.has_work


def test_an_id_in_flight_cannot_be_added_again() -> None:
    """Request ids are unique among requests in flight."""
    scheduler = driver_with().scheduler
    scheduler.add("a", [1], NO_STOP)

    with pytest.raises(InvariantError, match="'a' is in flight already"):
        scheduler.add("a", [1], NO_STOP)


def test_a_seed_is_the_clients_or_drawn_once() -> None:
    """A plan always carries a seed; two requests without one get different ones."""
    scheduler = Scheduler(driver_with().limits)
    for name, seed in (("a", 7), ("b", None), ("c", None)):
        scheduler.add(name, [1], SamplingParams(max_tokens=4, seed=seed))

    seeds = [scheduled.seed for scheduled in scheduler.schedule().scheduled]

    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_open_max_tokens_runs_to_the_end_of_the_context() -> None:
    """An answer without a limit ends with LENGTH when the context is full."""
    driver = driver_with(max_model_len=30)
    driver.add("a", prompt_of(10), SamplingParams(max_tokens=None))

    driver.drain()

    assert len(driver.outputs["a"]) == 20
    assert driver.reasons == {"a": FinishReason.LENGTH}


def test_the_more_urgent_is_admitted_first() -> None:
    """Lower priorities go first, equal ones in order of arrival."""
    driver = driver_with(max_num_seqs=1)
    for name, priority in (("a", 0), ("b", 1), ("c", 0), ("d", -1)):
        driver.add(name, prompt_of(5), NO_STOP, priority=priority)

    driver.drain()

    assert list(driver.reasons) == ["d", "a", "c", "b"]


def test_the_victim_is_of_the_least_urgent_priority_however_old() -> None:
    """An older request gives way to a younger, more urgent one, and ends undisturbed."""
    driver = driver_with(num_blocks=6, max_model_len=24)
    driver.add("old", prompt_of(10), NO_STOP, priority=1)
    driver.step()
    driver.add("urgent", prompt_of(10, 1), NO_STOP)

    driver.drain()

    assert {name for plan in driver.plans for name in plan.preempted} == {"old"}
    assert list(driver.reasons) == ["urgent", "old"]
    assert driver.outputs["old"] == FakeRunner().continuation(prompt_of(10), 8)


def test_a_preempted_request_keeps_its_place_within_its_priority() -> None:
    """It runs again before later ones of its priority and after more urgent ones."""
    driver = driver_with(num_blocks=6, max_model_len=24, max_num_seqs=2)
    driver.add("a", prompt_of(10), NO_STOP)
    driver.add("victim", prompt_of(10, 1), NO_STOP)
    while not driver.scheduler.num_preemptions:
        driver.step()
    driver.add("later", prompt_of(10, 2), NO_STOP)
    driver.add("urgent", prompt_of(10, 3), NO_STOP, priority=-1)

    driver.drain()

    assert list(driver.reasons) == ["a", "urgent", "victim", "later"]


def test_a_failed_request_ends_and_leaves_nothing_to_find() -> None:
    """Blocks that a failed step filled are not reused; the others in the step go on."""
    driver = driver_with()
    driver.add("bad", prompt_of(20), NO_STOP)
    driver.add("good", prompt_of(20, 1), NO_STOP)
    driver.runner.broken = {"bad"}

    events = driver.scheduler.apply(driver.runner.execute(driver.plan()))

    problem = "The logits are not finite."
    assert events[0] == TokenEvent("bad", None, FinishReason.ERROR, error=problem)
    driver.scheduler.check_integrity()
    driver.add("again", prompt_of(20), NO_STOP)
    driver.runner.broken = set()
    driver.step()
    assert driver.num_cached["again"] == 0


def test_a_scoring_call_ends_once_its_prompt_is_computed() -> None:
    """With max_tokens 0 nothing is sampled, and the prompt may fill the context."""
    driver = driver_with(max_model_len=20, max_num_batched_tokens=8)
    driver.add("a", prompt_of(20), SamplingParams(max_tokens=0, num_prompt_logprobs=0))

    driver.drain()

    assert [plan.scheduled[0].samples for plan in driver.plans] == [False] * 3
    assert driver.outputs["a"] == []
    assert driver.reasons == {"a": FinishReason.LENGTH}
    assert driver.scheduler.num_used_blocks == 0


def test_a_scoring_call_of_one_token_ends_as_well() -> None:
    """There is nothing to score, and still one step and one end."""
    driver = driver_with()
    driver.add("a", [1], SamplingParams(max_tokens=0, num_prompt_logprobs=0))

    driver.drain()

    assert len(driver.plans) == 1
    assert driver.reasons == {"a": FinishReason.LENGTH}


def test_no_stop_id_is_drawn_before_min_tokens() -> None:
    """Stop ids, the model's and the request's, are banned until then and no longer."""
    driver = driver_with(eos_token_ids=frozenset({7}))
    sampling = SamplingParams(max_tokens=4, min_tokens=2, stop_token_ids=(3,))
    driver.add("a", prompt_of(5), sampling)

    driver.drain()

    assert [plan.scheduled[0].banned_token_ids for plan in driver.plans[:3]] == [(3, 7), (3, 7), ()]


def test_logprobs_come_with_their_token() -> None:
    """The event of a token says how likely it was, where the request asks."""
    driver = driver_with()
    driver.add("asks", prompt_of(5), SamplingParams(max_tokens=3, num_logprobs=1))
    driver.add("does not", prompt_of(5), SamplingParams(max_tokens=3))

    driver.drain()

    assert [entry.token_id for entry in driver.logprobs["asks"]] == driver.outputs["asks"]
    assert driver.logprobs["does not"] == []
