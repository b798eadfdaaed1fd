"""Drives a `Scheduler` with a runner until all is done, keeping what came out."""

from collections.abc import Sequence

from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.scheduler import Scheduler
from nanoserve.sched.step import FinishReason, StepPlan, StepResult, TokenEvent, TokenLogprobs
from nanoserve.sched.step_pace import StepPace
from tests.fakes import FakeRunner, PagedFakeRunner


class SchedDriver:
    """A scheduler, a runner that checks the pool, and every plan and event so far."""

    def __init__(
        self, limits: EngineLimits, first_seed: int = 0, pace: StepPace | None = None
    ) -> None:
        seeds = iter(range(first_seed, first_seed + 1_000_000))
        self.limits = limits
        self.scheduler = Scheduler(limits, lambda: next(seeds), pace)
        self.runner = PagedFakeRunner(limits.num_blocks, limits.block_size, self._tokens_of)
        self.plans: list[StepPlan] = []
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.num_cached: dict[str, int] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = {}

    def add(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        salt: bytes = b"",
        priority: int = 0,
    ) -> None:
        self.scheduler.add(request_id, prompt_token_ids, sampling, salt, priority)
        self.outputs[request_id] = []
        self.logprobs[request_id] = []

    def abort(self, request_id: str) -> None:
        event = self.scheduler.abort(request_id)
        if event is not None:
            self.note(event)

    def plan(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.plans.append(plan)
        return plan

    def apply(self, result: StepResult) -> None:
        for event in self.scheduler.apply(result):
            self.note(event)
        self.scheduler.check_integrity()

    def step(self) -> StepPlan:
        plan = self.plan()
        self.apply(self.runner.execute(plan))
        return plan

    def drain(self, max_steps: int = 20_000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            assert not self.step().is_empty, "work is waiting and nothing was scheduled"
        message = f"work is left after {max_steps} steps"
        raise AssertionError(message)

    def note(self, event: TokenEvent) -> None:
        assert event.request_id not in self.reasons, "an event after the last one"
        if event.token_id is not None:
            self.outputs[event.request_id].append(event.token_id)
        if event.logprobs is not None:
            self.logprobs[event.request_id].append(event.logprobs)
        if event.finish_reason is not None:
            self.reasons[event.request_id] = event.finish_reason
        request = self.scheduler.request(event.request_id)
        assert request is not None
        self.num_cached[event.request_id] = request.num_cached_tokens

    def _tokens_of(self, request_id: str) -> Sequence[int]:
        request = self.scheduler.request(request_id)
        assert request is not None
        return request.token_ids


def expected_output(
    limits: EngineLimits, prompt_token_ids: Sequence[int], sampling: SamplingParams
) -> tuple[list[int], FinishReason]:
    """Return what a request generates alone and undisturbed, worked out from the fake model."""
    room = limits.max_request_tokens - len(prompt_token_ids)
    stops = set(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        stops |= limits.eos_token_ids
    tokens = list(prompt_token_ids)
    output: list[int] = []
    while len(output) < (room if sampling.max_tokens is None else sampling.max_tokens):
        token_id = FakeRunner().next_token(tokens[-1], len(tokens))
        while len(output) < sampling.min_tokens and token_id in stops:
            token_id = (token_id + 1) % limits.vocab_size
        tokens.append(token_id)
        output.append(token_id)
        if token_id in stops:
            return output, FinishReason.STOP
    return output, FinishReason.LENGTH
