"""The scheduler: which tokens of which requests the next step computes.

Owns every `Request` and the `BlockManager`. Knows nothing of text, clocks, HTTP or
tensors. `schedule` makes a `StepPlan`, a runner executes it, `apply` takes in what came
of it; everything else (`add`, `abort`) may happen between any two calls.

Read next: `policy` for the choices, `block_manager` for the pool, `step` for the messages.
"""

from collections.abc import Callable, Sequence

from nanoserve.errors import InvariantError
from nanoserve.sched.admission import EngineLimits, admit_or_refuse
from nanoserve.sched.block_manager import BlockManager
from nanoserve.sched.policy import order_by_phase, pick_victim
from nanoserve.sched.request import Request, RequestStatus, draw_seed
from nanoserve.sched.request_queue import RequestQueue
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import FinishReason, ScheduledRequest, StepPlan, StepResult, TokenEvent
from nanoserve.sched.step_check import find_answered
from nanoserve.sched.step_draft import StepDraft
from nanoserve.sched.step_pace import StepPace


class Scheduler:
    """Continuous batching over a fixed pool of KV blocks.

    One step holds decodes and prefill chunks together under one token budget. Running
    requests go first; the queue is served in order of urgency (lower priority first, then
    arrival), never skipping its head. When blocks run out the least urgent running request
    is preempted, so the most urgent one always gets on, and alone it fits the pool. Once
    no more are added every request ends: the most urgent of all runs and gets on, or is
    next while those that run can only become fewer. Until then a low priority may starve.

    Not thread-safe: one thread calls everything.
    """

    def __init__(
        self,
        limits: EngineLimits,
        entropy: Callable[[], int] = draw_seed,
        pace: StepPace | None = None,
    ) -> None:
        self.limits = limits
        self.pace = pace  # bounds prompts beside decodes; told of each step by who runs it
        self._entropy = entropy
        self._blocks = BlockManager(
            limits.num_blocks, limits.block_size, limits.enable_prefix_caching
        )
        self._requests: dict[str, Request] = {}  # waiting and running
        self._waiting = RequestQueue()  # victims of preemption included
        self._running = RequestQueue()
        self._just_finished: dict[str, Request] = {}  # readable until the next schedule()
        self._in_flight: tuple[StepPlan, tuple[Request, ...]] | None = None
        self._next_step_id = 0
        self._num_added = 0
        self._num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold a place in the batch."""
        return len(self._running)

    @property
    def num_preemptions(self) -> int:
        """Preemptions since the start."""
        return self._num_preemptions

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._requests)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that are unowned and empty."""
        return self._blocks.num_free_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that are unowned and hold a findable prefix."""
        return self._blocks.num_cached_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that at least one request holds."""
        return self._blocks.num_used_blocks

    def request(self, request_id: str) -> Request | None:
        """Return a request to read: in flight, or finished since the last `schedule`."""
        return self._requests.get(request_id) or self._just_finished.get(request_id)

    def add(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        salt: bytes = b"",
        priority: int = 0,
    ) -> None:
        """Queue a request.

        Args:
            request_id: Not that of a request in flight.
            prompt_token_ids: The prompt.
            sampling: `max_tokens` None means what is left of the context.
            salt: Prefixes are shared only between requests of the same salt.
            priority: Lower is more urgent.

        Raises:
            RequestError: It can never be served (see `admit_or_refuse`); nothing is queued.
            InvariantError: The id is in flight already.
        """
        if request_id in self._requests:
            message = f"request {request_id!r} is in flight already"
            raise InvariantError(message)
        resolved = admit_or_refuse(self.limits, prompt_token_ids, sampling)
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(prompt_token_ids),
            sampling=resolved,
            seed=self._entropy() if sampling.seed is None else sampling.seed,
            stop_token_ids=self.limits.stop_ids_of(sampling),
            salt=salt,
            priority=priority,
            arrival=self._num_added,
        )
        self._num_added += 1
        self._requests[request_id] = request
        self._waiting.add(request)

    def abort(
        self, request_id: str, reason: FinishReason = FinishReason.ABORT
    ) -> TokenEvent | None:
        """End a request now and release its blocks; returns its last event, None if not in flight."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._finish(request)
        return TokenEvent(request_id, token_id=None, finish_reason=reason)

    def schedule(self) -> StepPlan:
        """Plan the next step and allocate the blocks it writes to.

        Never empty while there is work. A plan that is not applied is forgotten: a step that
        failed can be repeated. No runner may still be at work on an earlier plan.
        """
        self._just_finished.clear()
        draft = StepDraft(self.limits.max_num_batched_tokens, self._prompt_budget())
        self._continue_running(draft)
        if not draft.preempted:
            self._admit_waiting(draft)
        plan = draft.to_plan(self._next_step_id)
        self._next_step_id += 1
        self._in_flight = (plan, tuple(draft.chunks))
        return plan

    def _prompt_budget(self) -> int | None:
        num_joining = min(self.num_waiting, self.limits.max_num_seqs - len(self._running))
        return None if self.pace is None else self.pace.prompt_budget(self._running, num_joining)

    def _continue_running(self, draft: StepDraft) -> None:
        for request in order_by_phase(self._running):
            if request.status is RequestStatus.PREEMPTED:
                continue  # the victim of one that came before it
            chunk_len = request.chunk_len(draft.budget_for(request))
            if chunk_len > 0 and self._make_room(request, chunk_len, draft):
                self._put(request, chunk_len, draft)

    def _make_room(self, request: Request, chunk_len: int, draft: StepDraft) -> bool:
        """Preempt until the blocks of a chunk are available; False if `request` had to go."""
        end = request.num_computed_tokens + chunk_len
        need = self._blocks.num_missing(request.block_table, end)
        while need > self._blocks.num_available_blocks:
            victim = pick_victim(list(self._running))
            draft.drop(victim)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _put(self, request: Request, chunk_len: int, draft: StepDraft) -> None:
        end = request.num_computed_tokens + chunk_len
        need = self._blocks.num_missing(request.block_table, end)
        request.block_table += self._blocks.allocate(need)
        draft.put(request, chunk_len)

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._waiting.add(request)
        self._blocks.release(request.block_table)
        request.num_computed_tokens = 0
        request.status = RequestStatus.PREEMPTED
        self._num_preemptions += 1

    def _admit_waiting(self, draft: StepDraft) -> None:
        """Admit from the head of the queue while a place, budget and blocks are left.

        Budget is left only once every running prompt has been scheduled to its end, so no
        block counted here is one that a running prompt still needs. (The one exception, a
        restarted scoring prompt, gets its blocks back by preemption.)
        """
        while self._waiting and draft.prompt_room and len(self._running) < self.limits.max_num_seqs:
            request = self._waiting.first
            hits = self._find_hits(request)
            need = self._blocks.blocks_for_length(request.num_tokens) - len(hits)
            if need > self._blocks.num_available_beside(hits):
                return
            self._admit(request, hits)
            draft.admitted.append(request.request_id)
            self._put(request, request.chunk_len(draft.prompt_room), draft)

    def _find_hits(self, request: Request) -> list[int]:
        self._blocks.extend_hashes(request.block_hashes, request.token_ids, request.salt)
        max_hit_blocks = request.max_hit_tokens // self.limits.block_size
        return self._blocks.find_prefix(request.block_hashes[:max_hit_blocks])

    def _admit(self, request: Request, hits: list[int]) -> None:
        self._waiting.remove(request)
        self._running.add(request)
        self._blocks.take(hits)
        request.block_table = hits
        request.num_computed_tokens = len(hits) * self.limits.block_size
        if request.status is RequestStatus.WAITING:
            request.num_cached_tokens = request.num_computed_tokens
        request.status = RequestStatus.RUNNING

    def apply(self, result: StepResult) -> list[TokenEvent]:
        """Take in what the last planned step gave.

        Returns:
            One event per request that gained a token or ended, in the plan's order.
            Requests aborted since the step was planned have had their last event and get
            none. A failed request ends, and nothing this step computed of it is kept.

        Raises:
            InvariantError: `result` does not answer the last plan; nothing is changed.
        """
        plan, requests = find_answered(self._in_flight, result)
        self._in_flight = None
        events = []
        for request, scheduled, token_id in zip(
            requests, plan.scheduled, result.sampled_token_ids, strict=True
        ):
            if request.status is not RequestStatus.FINISHED:
                event = self._take_in(request, scheduled, token_id, result)
                events += [] if event is None else [event]
        return events

    def _take_in(
        self,
        request: Request,
        scheduled: ScheduledRequest,
        token_id: int | None,
        result: StepResult,
    ) -> TokenEvent | None:
        request_id = request.request_id
        if request_id in result.failed:
            self._finish(request)
            return TokenEvent(request_id, None, FinishReason.ERROR, error=result.failed[request_id])
        self._blocks.extend_hashes(request.block_hashes, request.token_ids, request.salt)
        self._blocks.register_filled(
            request.block_table,
            request.block_hashes,
            request.num_computed_tokens,
            scheduled.context_len,
        )
        request.advance(scheduled)
        if token_id is None and not request.is_complete:
            return None
        reason = FinishReason.LENGTH if token_id is None else request.append_token(token_id)
        if reason is not None:
            self._finish(request)
        stop_token_id = token_id if reason is FinishReason.STOP else None
        logprobs = result.logprobs.get(request_id)
        return TokenEvent(request_id, token_id, reason, stop_token_id, logprobs)

    def _finish(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._blocks.release(request.block_table)
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]
        self._just_finished[request.request_id] = request

    def check_integrity(self) -> None:
        """Check the books of the pool against every request. Costs O(blocks): for tests.

        Raises:
            InvariantError: An identity is broken; both sides are printed.
        """
        self._blocks.check_integrity(request.block_table for request in self._requests.values())
