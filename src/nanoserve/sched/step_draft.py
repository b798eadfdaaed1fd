"""A step in the making: what the scheduler has decided so far, and what is left to spend.

Lives inside one call of `Scheduler.schedule`; `step` has what comes out of it.
"""

from dataclasses import dataclass, field

from nanoserve.sched.request import Request
from nanoserve.sched.step import StepPlan


@dataclass(slots=True)
class StepDraft:
    """Requests with the length of their chunks; written by the `Scheduler` alone.

    Attributes:
        budget_left: Tokens that may still be scheduled.
        prompt_budget_left: How many of them may be prompts'; None is all.
        chunks: Tokens to compute of each request, in the plan's order.
        preempted: Ids of requests that had to make room.
        admitted: Ids of requests that came out of the queue.
    """

    budget_left: int
    prompt_budget_left: int | None = None
    chunks: dict[Request, int] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)

    def budget_for(self, request: Request) -> int:
        """Return how many tokens of `request` may be scheduled: a decode needs one."""
        is_prompt = request.num_uncomputed_tokens > 1
        return self.prompt_room if is_prompt else self.budget_left

    @property
    def prompt_room(self) -> int:
        """Tokens of prompts that may still be scheduled."""
        if self.prompt_budget_left is None:
            return self.budget_left
        return min(self.budget_left, self.prompt_budget_left)

    def put(self, request: Request, chunk_len: int) -> None:
        """Schedule `chunk_len` tokens of `request`."""
        self._spend(request, chunk_len)
        self.chunks[request] = chunk_len

    def drop(self, victim: Request) -> None:
        """Note that `victim` was preempted; tokens it had in this step are unspent again."""
        self._spend(victim, -self.chunks.pop(victim, 0))
        self.preempted.append(victim.request_id)

    def _spend(self, request: Request, num_tokens: int) -> None:
        self.budget_left -= num_tokens
        if self.prompt_budget_left is not None and request.num_uncomputed_tokens > 1:
            self.prompt_budget_left -= num_tokens

    def to_plan(self, step_id: int) -> StepPlan:
        """Freeze the draft; block tables must cover the scheduled tokens."""
        scheduled = tuple(request.to_scheduled(num) for request, num in self.chunks.items())
        return StepPlan(step_id, scheduled, tuple(self.preempted), tuple(self.admitted))
