"""`Scheduler` under any order of adds, aborts, steps, lost steps and failures.

The runner stores token ids in a pool and reads every history back (`PagedFakeRunner`), a
second scheduler is fed alike, and at the end every answer is what the request alone would
have got.
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from nanoserve.errors import PromptTooLongError
from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import FinishReason, StepPlan
from nanoserve.sched.step_cost import StepSize
from nanoserve.sched.step_pace import StepPace
from tests.sched_driver import SchedDriver, expected_output
from tests.strategies import engine_limits, prompts, sampling_params


@dataclass
class Added:
    """What was asked for, and the prompt tokens scored so far."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int
    scored_token_ids: list[int]


class SchedulerMachine(RuleBasedStateMachine):
    """One scheduler with a checking runner, and its twin."""

    @initialize(limits=engine_limits())
    def start(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.driver = SchedDriver(limits, pace=StepPace())
        self.twin = SchedDriver(limits, pace=StepPace())
        self.added: dict[str, Added] = {}

    @rule(
        prompt=prompts(),
        sampling=sampling_params(),
        salt=st.sampled_from([b"", b"", b"other"]),
        priority=st.integers(-1, 1),
    )
    def add(
        self, prompt: tuple[int, ...], sampling: SamplingParams, salt: bytes, priority: int
    ) -> None:
        self.add_one(prompt, sampling, salt, priority)

    def add_one(
        self, prompt: tuple[int, ...], sampling: SamplingParams, salt: bytes, priority: int
    ) -> None:
        request_id = f"r{len(self.added)}"
        fewest = max(1, sampling.min_tokens)
        requested = fewest if sampling.max_tokens is None else sampling.max_tokens
        if len(prompt) + requested > self.limits.max_request_tokens:
            with pytest.raises(PromptTooLongError):
                self.driver.add(request_id, prompt, sampling, salt, priority)
            return
        self.driver.add(request_id, prompt, sampling, salt, priority)
        self.twin.add(request_id, prompt, sampling, salt, priority)
        self.added[request_id] = Added(prompt, sampling, priority, [])

    @rule(crowd=st.lists(st.tuples(prompts(), sampling_params()), min_size=2, max_size=6))
    def add_crowd(self, crowd: list[tuple[tuple[int, ...], SamplingParams]]) -> None:
        for prompt, sampling in crowd:
            self.add_one(prompt, sampling, b"", 0)

    @precondition(lambda self: self.added)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.added)))
        for driver in (self.driver, self.twin):
            driver.abort(request_id)
            driver.scheduler.check_integrity()

    @rule()
    def step(self) -> None:
        plan = self.checked_plan()
        result = self.driver.runner.execute(plan)
        self.driver.apply(result)
        self.twin.apply(result)
        self.note_scores(plan)

    @rule(num_tokens=st.integers(32, 64), token_s=st.floats(1e-6, 10.0))
    def time_steps(self, num_tokens: int, token_s: float) -> None:
        """Steps took so long: from now on prompts may be read in smaller pieces."""
        for driver in (self.driver, self.twin):
            assert driver.scheduler.pace is not None
            driver.scheduler.pace.observe(StepSize(0, num_tokens), num_tokens * token_s)
            driver.scheduler.pace.observe(StepSize(1), 0.01)

    @rule(num_steps=st.integers(2, 12))
    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step()

    @rule(data=st.data())
    def step_with_an_abort_in_flight(self, data: st.DataObject) -> None:
        plan = self.checked_plan()
        result = self.driver.runner.execute(plan)
        if plan.scheduled:
            victim = data.draw(st.sampled_from(plan.scheduled)).request_id
            self.driver.abort(victim)
            self.twin.abort(victim)
        self.driver.apply(result)
        self.twin.apply(result)
        self.note_scores(plan)

    @rule(data=st.data())
    def step_with_a_failure(self, data: st.DataObject) -> None:
        plan = self.checked_plan()
        ids = [scheduled.request_id for scheduled in plan.scheduled]
        self.driver.runner.broken = set(ids and [data.draw(st.sampled_from(ids))])
        result = self.driver.runner.execute(plan)
        self.driver.runner.broken = set()
        self.driver.apply(result)
        self.twin.apply(result)
        self.note_scores(plan)

    @rule()
    def lose_a_step(self) -> None:
        self.driver.runner.execute(self.checked_plan())

    def checked_plan(self) -> StepPlan:
        most_urgent = min(
            (request.request_id for request in self.driver.scheduler._running),
            key=self.urgency,
            default=None,
        )
        has_work = self.driver.scheduler.has_work
        plan = self.driver.plan()

        assert plan == self.twin.plan(), "fed alike, two schedulers plan alike"
        assert plan.is_empty == (not has_work)
        assert plan.num_tokens <= self.limits.max_num_batched_tokens
        assert self.driver.scheduler.num_running <= self.limits.max_num_seqs
        ids = [scheduled.request_id for scheduled in plan.scheduled]
        assert len(ids) == len(set(ids))
        assert not set(ids) & set(plan.preempted)
        if most_urgent is not None:
            assert most_urgent in ids, "the most urgent running request makes progress"
        self.check_draws(plan)
        self.check_order(ids)
        self.check_slots(plan)
        self.driver.scheduler.check_integrity()
        return plan

    def check_order(self, ids: list[str]) -> None:
        """Both lists are in order; no decode is left out.

        Within one priority every running request is older than every waiting one.
        """
        running = list(self.driver.scheduler._running)
        waiting = list(self.driver.scheduler._waiting)
        for requests in (running, waiting):
            names = [request.request_id for request in requests]
            assert names == sorted(names, key=self.urgency)
        for priority in (-1, 0, 1):
            both = [r.request_id for r in [*running, *waiting] if r.priority == priority]
            assert both == sorted(both, key=self.urgency)
        decodes = {request.request_id for request in running if request.num_uncomputed_tokens == 1}
        assert decodes <= set(ids)

    def urgency(self, request_id: str) -> tuple[int, int]:
        return self.added[request_id].priority, list(self.added).index(request_id)

    def check_draws(self, plan: StepPlan) -> None:
        """A draw is told of the stop ids that come too early, and of what penalties count."""
        for scheduled in plan.scheduled:
            sampling = self.added[scheduled.request_id].sampling
            output = self.driver.outputs[scheduled.request_id]
            is_short = scheduled.samples and len(output) < sampling.min_tokens
            own_stops = set() if sampling.ignore_eos else self.limits.eos_token_ids
            stops = own_stops | set(sampling.stop_token_ids)
            assert set(scheduled.banned_token_ids) == (stops if is_short else set())
            prompt = self.added[scheduled.request_id].prompt_token_ids
            if scheduled.samples and sampling.frequency_penalty:
                assert scheduled.history is not None
                assert list(scheduled.history) == [*prompt, *output]
            else:
                assert scheduled.history is None

    def check_slots(self, plan: StepPlan) -> None:
        """Nobody writes to a block that others may read."""
        blocks = self.driver.scheduler._blocks
        for scheduled in plan.scheduled:
            first = scheduled.num_computed_tokens // self.limits.block_size
            for block_id in scheduled.block_table[first:]:
                assert blocks.ref_count(block_id) == 1
                assert not blocks.is_registered(block_id)

    def note_scores(self, plan: StepPlan) -> None:
        for scheduled in plan.scheduled:
            self.added[scheduled.request_id].scored_token_ids += scheduled.scored_token_ids

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        for _ in range(5_000):
            if not self.driver.scheduler.has_work:
                break
            self.step()
        assert set(self.driver.reasons) == set(self.added), "one final event for every request"
        assert self.driver.scheduler.num_used_blocks == 0
        for request_id in self.added:
            self.check_answer(request_id)

    def check_answer(self, request_id: str) -> None:
        added = self.added[request_id]
        output, reason = expected_output(self.limits, added.prompt_token_ids, added.sampling)
        scores = added.sampling.num_prompt_logprobs is not None
        to_score = list(added.prompt_token_ids[1:]) if scores else []
        got = self.driver.outputs[request_id]
        if added.sampling.num_logprobs is not None:
            assert [entry.token_id for entry in self.driver.logprobs[request_id]] == got
        if self.driver.reasons[request_id] in (FinishReason.ABORT, FinishReason.ERROR):
            assert got == output[: len(got)]
            assert added.scored_token_ids == to_score[: len(added.scored_token_ids)]
            return
        assert self.driver.reasons[request_id] is reason
        assert self.driver.outputs[request_id] == output
        assert added.scored_token_ids == to_score
        assert self.driver.num_cached[request_id] < len(added.prompt_token_ids)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)
