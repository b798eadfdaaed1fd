"""The step loop's body: schedule, execute, apply, and text out. Synchronous, one thread.

Owns the order of these four and what an exception means: out of memory costs the newest
requests, a fault in one request's text or grammar costs that request, anything else is
raised and ends the loop. Knows nothing of threads or asyncio (see `async_bridge`) nor of tensors.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from nanoserve.engine.grammar_masks import mask_step
from nanoserve.engine.interface import GenerationRequest, OutputDelta, Runner, TextCodec
from nanoserve.engine.output_processor import OutputProcessor
from nanoserve.engine.stats import EngineStats, Gauges, StatsSnapshot
from nanoserve.engine.step_trace import StepSink, StepTrace
from nanoserve.errors import InvariantError
from nanoserve.sched.scheduler import Scheduler
from nanoserve.sched.step import FinishReason, StepPlan, StepResult, TokenEvent, TokenLogprobs
from nanoserve.sched.step_cost import StepSize

logger = logging.getLogger(__name__)


class EngineCore:
    """Turns requests into deltas, one step at a time. Not thread-safe."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        codec: TextCodec,
        clock: Callable[[], float] = time.monotonic,
        trace: StepSink | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._outputs = OutputProcessor(codec)
        self._stats = EngineStats()
        self._clock = clock
        self._requests: dict[str, GenerationRequest] = {}  # oldest first
        self._prompt_scores: dict[str, list[TokenLogprobs | None]] = {}  # until the first delta
        self._trace = trace
        self._ended: list[str] = []  # requests that ended since the last step was done

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self._scheduler.has_work

    def add(self, request: GenerationRequest, submitted_s: float | None = None) -> None:
        """Queue a request.

        Args:
            request: Admitted: its ranges and its length have been checked.
            submitted_s: When the client's call arrived, on this core's clock; now if None.
        """
        self._scheduler.add(
            request.request_id,
            request.prompt_token_ids,
            request.sampling,
            request.salt,
            request.priority,
        )
        self._outputs.add(request)
        self._requests[request.request_id] = request
        if request.sampling.num_prompt_logprobs is not None:
            scores: list[TokenLogprobs | None] = [None] * len(request.prompt_token_ids)
            self._prompt_scores[request.request_id] = scores
        now_s = self._clock() if submitted_s is None else submitted_s
        self._stats.record_submitted(request.request_id, len(request.prompt_token_ids), now_s)

    def abort(self, request_id: str) -> OutputDelta | None:
        """End a request now and release its blocks; None if it is not in the engine."""
        if request_id not in self._requests:
            return None
        delta = self._end(request_id, FinishReason.ABORT, None)
        self._flush_if_idle()
        return delta

    def abort_all(self) -> None:
        """End every request and release all blocks."""
        for request_id in list(self._requests):
            self.abort(request_id)

    def step(self) -> list[OutputDelta]:
        """Run one forward pass.

        Returns:
            What each request gained. A request's last delta has a `finish_reason`.

        Raises:
            InvariantError: There is work, but the scheduler planned nothing.
            Exception: What the runner raised, unless it ran out of memory for the first
                time in this step.
        """
        plan = self._scheduler.schedule()
        if plan.is_empty:
            message = (
                f"The scheduler planned an empty step with {self._scheduler.num_waiting} waiting "
                f"and {self._scheduler.num_running} running requests."
            )
            raise InvariantError(message)
        started_s = self._clock()
        result = self._execute(plan)
        self._pace(plan, self._clock() - started_s)
        self._collect_prompt_scores(plan, result)
        events = self._scheduler.apply(result)
        now_s = self._clock()
        self._stats.record_step(plan, result.execution, now_s)
        deltas = [self._process(event, now_s) for event in events]
        self._trace_step(plan, result)
        return deltas

    def flush_trace(self) -> None:
        """Have the trace written as far as it goes; an idle engine has done so itself."""
        if self._trace is not None:
            self._trace.flush()

    def snapshot(self) -> StatsSnapshot:
        """Return the counters and gauges as they are between two steps."""
        return self._stats.snapshot(self._gauges())

    def _gauges(self) -> Gauges:
        scheduler = self._scheduler
        return Gauges(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_blocks=scheduler.limits.num_blocks,
            num_free_blocks=scheduler.num_free_blocks,
            num_used_blocks=scheduler.num_used_blocks,
            num_cached_blocks=scheduler.num_cached_blocks,
            num_preemptions=scheduler.num_preemptions,
        )

    def _pace(self, plan: StepPlan, seconds: float) -> None:
        if self._scheduler.pace is not None:
            self._scheduler.pace.observe(StepSize.of(plan), seconds)

    def _trace_step(self, plan: StepPlan, result: StepResult) -> None:
        ended, self._ended = self._ended, []
        if self._trace is not None:
            self._trace.write(StepTrace.from_step(plan, result.execution, self._gauges(), ended))
            self._flush_if_idle()

    def _flush_if_idle(self) -> None:
        if not self.has_work:
            self.flush_trace()

    def _execute(self, plan: StepPlan) -> StepResult:
        plan, failed = mask_step(plan, self._requests)
        try:
            return self._execute_without(plan, failed)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            problem = f"The server ran out of memory in step {plan.step_id}: {error}"
        # Outside the handler, so that the failed step's frames no longer hold its memory.
        newest = self._newest_half(plan)
        logger.error("%s Failing the %d newest requests.", problem, len(newest))
        return self._execute_without(plan, dict.fromkeys(newest, problem) | failed)

    def _execute_without(self, plan: StepPlan, failed: dict[str, str]) -> StepResult:
        """Run `plan` but for the failed requests; the result says so of them."""
        if not failed:
            return self._runner.execute(plan)
        kept = tuple(part for part in plan.scheduled if part.request_id not in failed)
        result = StepResult(plan.step_id, (), {})
        if kept:
            result = self._runner.execute(replace(plan, scheduled=kept))
        new_tokens = {
            part.request_id: token_id
            for part, token_id in zip(kept, result.sampled_token_ids, strict=True)
        }
        sampled = tuple(new_tokens.get(part.request_id) for part in plan.scheduled)
        return replace(result, sampled_token_ids=sampled, failed=result.failed | failed)

    def _newest_half(self, plan: StepPlan) -> list[str]:
        """Return the younger half of the scheduled requests, rounded up."""
        in_step = {part.request_id for part in plan.scheduled}
        oldest_first = [request_id for request_id in self._requests if request_id in in_step]
        return oldest_first[len(oldest_first) // 2 :]

    def _collect_prompt_scores(self, plan: StepPlan, result: StepResult) -> None:
        for part in plan.scheduled:
            scores = self._prompt_scores.get(part.request_id)
            if scores is None:
                continue
            first = part.num_computed_tokens + 1  # a token's score sits at the token's position
            found = result.prompt_logprobs.get(part.request_id, ())
            scores[first : first + len(found)] = found

    def _process(self, event: TokenEvent, now_s: float) -> OutputDelta:
        request_id = event.request_id
        scheduled = self._scheduler.request(request_id)
        num_cached_tokens = 0 if scheduled is None else scheduled.num_cached_tokens
        if event.token_id is not None:
            self._stats.record_token(request_id, num_cached_tokens, now_s)
        if event.error is not None:
            logger.error("Request %s failed: %s", request_id, event.error)
        try:
            delta = self._take_in(event, num_cached_tokens)
        except Exception as error:  # border: one request's output may not end the others
            logger.exception("Request %s failed while its output was taken in.", request_id)
            problem = f"The output could not be processed: {error}"
            return self._end(request_id, FinishReason.ERROR, problem)
        scores = self._prompt_scores.pop(request_id, None)
        if scores is not None and delta.error is None:
            delta = replace(delta, prompt_logprobs=tuple(scores))
        if delta.finish_reason is not None:
            if event.finish_reason is None:  # a stop string: the scheduler does not know yet
                self._scheduler.abort(request_id, delta.finish_reason)
            self._forget(request_id, delta.finish_reason)
        return delta

    def _take_in(self, event: TokenEvent, num_cached_tokens: int) -> OutputDelta:
        grammar = self._requests[event.request_id].grammar
        if grammar is not None and event.token_id is not None and event.stop_token_id is None:
            grammar.accept(event.token_id)
        return self._outputs.process(event, num_cached_tokens)

    def _end(self, request_id: str, reason: FinishReason, problem: str | None) -> OutputDelta:
        self._scheduler.abort(request_id, reason)
        self._outputs.remove(request_id)
        self._forget(request_id, reason)
        return OutputDelta(request_id, "", (), reason, error=problem)

    def _forget(self, request_id: str, reason: FinishReason) -> None:
        del self._requests[request_id]
        self._prompt_scores.pop(request_id, None)
        self._ended.append(request_id)
        self._stats.record_finished(request_id, reason, self._clock())


def _is_out_of_memory(error: Exception) -> bool:
    """Recognise `MemoryError` and torch's OutOfMemoryError, which is not imported here."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
