"""How the steps of an engine ran: counts that only grow, and the last decode steps by mode.

A step that holds decodes alone is a decode step: it is the only kind that can be padded to
a recorded shape, so only it is counted by mode. Whether the window is good news is
`plan.boot_checks`'s to say.
"""

from collections import deque
from dataclasses import dataclass

from nanoserve.plan.boot_checks import DecodeWindow
from nanoserve.sched.step import StepExecution, StepMode, StepPlan

WINDOW_STEPS = 1000  # decode steps that /health looks back on


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What has run since the start.

    Attributes:
        num_steps: Forward passes.
        num_prefill_steps: Those of them that computed prompt tokens, beside decodes or alone.
        num_decode_steps: The others, by how they ran; every mode is present.
        padded_rows: Rows added to reach a shape, over all steps.
        num_evicted: Recorded graphs dropped to hold another.
        window: The last `WINDOW_STEPS` decode steps.
    """

    num_steps: int
    num_prefill_steps: int
    num_decode_steps: dict[StepMode, int]
    padded_rows: int
    num_evicted: int
    window: DecodeWindow


class StepCounter:
    """Counts steps; a constant amount of work for each."""

    def __init__(self, window_steps: int = WINDOW_STEPS) -> None:
        self._window_steps = window_steps
        self._recent: deque[StepMode] = deque()  # oldest first, at most window_steps
        self._num_recent = dict.fromkeys(StepMode, 0)
        self._num_decode_steps = dict.fromkeys(StepMode, 0)
        self._num_prefill_steps = 0
        self._padded_rows = 0
        self._num_evicted = 0

    def record(self, plan: StepPlan, execution: StepExecution) -> None:
        """Count one step."""
        self._padded_rows += execution.padded_rows
        self._num_evicted += execution.num_evicted
        if plan.is_decode:
            self._num_decode_steps[execution.mode] += 1
            self._remember(execution.mode)
        else:
            self._num_prefill_steps += 1

    def _remember(self, mode: StepMode) -> None:
        self._recent.append(mode)
        self._num_recent[mode] += 1
        if len(self._recent) > self._window_steps:
            self._num_recent[self._recent.popleft()] -= 1

    def snapshot(self) -> StepCounts:
        """Return a copy that does not change."""
        recent = self._num_recent
        window = DecodeWindow(
            num_steps=len(self._recent),
            num_replayed=recent[StepMode.REPLAYED],
            num_bucketed=recent[StepMode.BUCKETED],
            num_eager=recent[StepMode.EAGER],
            num_late=recent[StepMode.LATE],
        )
        return StepCounts(
            num_steps=self._num_prefill_steps + sum(self._num_decode_steps.values()),
            num_prefill_steps=self._num_prefill_steps,
            num_decode_steps=dict(self._num_decode_steps),
            padded_rows=self._padded_rows,
            num_evicted=self._num_evicted,
            window=window,
        )
