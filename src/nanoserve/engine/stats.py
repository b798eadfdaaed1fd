"""What the engine has done, as plain numbers: counters that only grow, and three histograms.

`EngineStats` is written by the thread that runs the loop and by nobody else; it hands out
frozen `StatsSnapshot`s, which any thread may read. Knows nothing of Prometheus (see
`server.metrics`).
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace

from nanoserve.engine.step_counts import StepCounter, StepCounts
from nanoserve.sched.step import FinishReason, StepExecution, StepPlan

# Upper bounds in seconds. Source: vLLM, v1/metrics/loggers.py (shortened).
# fmt: off
TTFT_BOUNDS_S: tuple[float, ...] = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)
INTER_TOKEN_BOUNDS_S: tuple[float, ...] = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)
E2E_BOUNDS_S: tuple[float, ...] = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0,
)
# fmt: on


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """Observations by size.

    Attributes:
        bounds_s: Upper bounds of the buckets, inclusive, ascending.
        counts: Observations in each bucket, and last those above every bound.
        sum_s: Sum of all observations.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)


class Histogram:
    """Counts observations in buckets."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds_s, value_s)] += 1
        self._sum_s += value_s

    def snapshot(self) -> HistogramSnapshot:
        """Return a copy that does not change."""
        return HistogramSnapshot(self._bounds_s, tuple(self._counts), self._sum_s)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is so right now.

    Attributes:
        num_running: Requests that hold blocks.
        num_waiting: Requests that wait for a place.
        num_blocks: KV blocks in all; free, used and cached ones add up to it.
        num_free_blocks: Unowned and empty.
        num_used_blocks: Held by a request.
        num_cached_blocks: Unowned, kept for their prefix.
        num_preemptions: Requests sent back to the queue since the start.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_used_blocks: int = 0
    num_cached_blocks: int = 0
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class StatsSnapshot:
    """Everything /metrics shows, taken between two steps.

    Attributes:
        finished: Ended requests by reason; every reason is present.
        prompt_tokens: Prompt tokens of requests that reached their first token.
        cached_prompt_tokens: Those of them that came from the prefix cache.
        generation_tokens: Tokens sampled, stop ids and aborted requests included.
        steps: Forward passes, and how they ran.
        last_step_time_s: Monotonic time at which the last step ended; None before it.
        ttft_s: Submission to first token, once per request that got one.
        e2e_s: Submission to end, once per request.
        inter_token_s: Gap between two tokens of one request.
        gauges: What is so right now.
        num_rejected: Requests turned away because too many were in flight.
        last_step_age_s: Seconds since the last step ended, as `as_seen` fills it in; None
            before the first.
    """

    finished: dict[FinishReason, int]
    prompt_tokens: int
    cached_prompt_tokens: int
    generation_tokens: int
    steps: StepCounts
    last_step_time_s: float | None
    ttft_s: HistogramSnapshot
    e2e_s: HistogramSnapshot
    inter_token_s: HistogramSnapshot
    gauges: Gauges
    num_rejected: int = 0
    last_step_age_s: float | None = None

    def as_seen(self, now_s: float, num_incoming: int, num_rejected: int) -> "StatsSnapshot":
        """Return the snapshot with what the loop itself does not see.

        Args:
            now_s: When it is looked at, on the core's clock.
            num_incoming: Requests not in the gauges yet; they wait as well.
            num_rejected: Requests turned away at the door.
        """
        last_s, gauges = self.last_step_time_s, self.gauges
        return replace(
            self,
            gauges=replace(gauges, num_waiting=gauges.num_waiting + num_incoming),
            num_rejected=num_rejected,
            last_step_age_s=None if last_s is None else now_s - last_s,
        )


@dataclass(slots=True)
class _Timeline:
    submitted_s: float
    num_prompt_tokens: int
    last_token_s: float | None = None


@dataclass(slots=True)
class EngineStats:
    """The counters, and when each open request had its last token."""

    finished: dict[FinishReason, int] = field(
        default_factory=lambda: dict.fromkeys(FinishReason, 0)
    )
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: StepCounter = field(default_factory=StepCounter)
    last_step_time_s: float | None = None
    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    e2e_s: Histogram = field(default_factory=lambda: Histogram(E2E_BOUNDS_S))
    inter_token_s: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_BOUNDS_S))
    _open: dict[str, _Timeline] = field(default_factory=dict)

    def record_submitted(self, request_id: str, num_prompt_tokens: int, now_s: float) -> None:
        """Start the clock of a request."""
        self._open[request_id] = _Timeline(now_s, num_prompt_tokens)

    def record_token(self, request_id: str, num_cached_tokens: int, now_s: float) -> None:
        """Count one sampled token: the first is a TTFT, a later one a gap."""
        timeline = self._open[request_id]
        self.generation_tokens += 1
        if timeline.last_token_s is None:
            self.ttft_s.observe(now_s - timeline.submitted_s)
            self.prompt_tokens += timeline.num_prompt_tokens
            self.cached_prompt_tokens += num_cached_tokens
        else:
            self.inter_token_s.observe(now_s - timeline.last_token_s)
        timeline.last_token_s = now_s

    def record_finished(self, request_id: str, reason: FinishReason, now_s: float) -> None:
        """Stop the clock of a request, once."""
        timeline = self._open.pop(request_id)
        self.finished[reason] += 1
        self.e2e_s.observe(now_s - timeline.submitted_s)

    def record_step(self, plan: StepPlan, execution: StepExecution, now_s: float) -> None:
        """Count one forward pass."""
        self.steps.record(plan, execution)
        self.last_step_time_s = now_s

    def snapshot(self, gauges: Gauges) -> StatsSnapshot:
        """Return a copy that does not change, with what is so right now."""
        return StatsSnapshot(
            finished=dict(self.finished),
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            generation_tokens=self.generation_tokens,
            steps=self.steps.snapshot(),
            last_step_time_s=self.last_step_time_s,
            ttft_s=self.ttft_s.snapshot(),
            e2e_s=self.e2e_s.snapshot(),
            inter_token_s=self.inter_token_s.snapshot(),
            gauges=gauges,
        )
