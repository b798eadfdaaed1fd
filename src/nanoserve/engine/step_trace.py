"""What the scheduler did, step by step: one JSON line for each step in a file.

Owns the format of a line and the file. Lines are held back until enough have come or the
engine says that it is idle, and a file that cannot be written ends the trace, never the
engine.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from nanoserve.engine.stats import Gauges
from nanoserve.error_reasons import reason_of
from nanoserve.errors import OptionError
from nanoserve.sched.step import StepExecution, StepMode, StepPlan

logger = logging.getLogger(__name__)

MAX_HELD_LINES = 64  # less than a second of steps on a GPU, and a few seconds on a CPU

StepKind = Literal["prefill", "decode", "mixed"]


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step, as it stood when the step was done.

    Attributes:
        step: The plan's step id, from 0.
        kind: `decode` where every request computed one token, `prefill` where none did,
            `mixed` otherwise. A prompt's chunk of one token runs as a decode and counts so.
        mode: How the step ran.
        tokens: Tokens computed.
        running: Requests that hold blocks.
        waiting: Requests in the queue, preempted ones included.
        free_blocks: Blocks that are unowned and empty.
        cached_blocks: Blocks that are unowned and kept for their prefix.
        admitted: Ids of requests that came out of the queue for this step.
        finished: Ids of requests that ended in this step, or by an abort since the last one.
        preempted: Ids of requests sent back to the queue to make room for this step.
    """

    step: int
    kind: StepKind
    mode: StepMode
    tokens: int
    running: int
    waiting: int
    free_blocks: int
    cached_blocks: int
    admitted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()

    @classmethod
    def from_step(
        cls, plan: StepPlan, execution: StepExecution, gauges: Gauges, finished: Sequence[str]
    ) -> "StepTrace":
        """Return the trace of a step that is done.

        Args:
            plan: What was computed.
            execution: How it ran.
            gauges: As they are after the step.
            finished: Ids of the requests that have ended since the step before it.
        """
        return cls(
            step=plan.step_id,
            kind=_kind(plan),
            mode=execution.mode,
            tokens=plan.num_tokens,
            running=gauges.num_running,
            waiting=gauges.num_waiting,
            free_blocks=gauges.num_free_blocks,
            cached_blocks=gauges.num_cached_blocks,
            admitted=plan.admitted,
            finished=tuple(finished),
            preempted=plan.preempted,
        )

    def to_json(self) -> str:
        """Return the step as one line of JSON, without its end."""
        return json.dumps({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def from_json(cls, line: str) -> "StepTrace":
        """Return the step of a line that `to_json` wrote."""
        values: dict[str, Any] = json.loads(line)
        values["mode"] = StepMode(values["mode"])
        for name in ("admitted", "finished", "preempted"):
            values[name] = tuple(values[name])
        return cls(**values)


def _kind(plan: StepPlan) -> StepKind:
    if plan.is_decode:
        return "decode"
    has_decodes = any(len(request.token_ids) == 1 for request in plan.scheduled)
    return "mixed" if has_decodes else "prefill"


class StepSink(Protocol):
    """Who is told of each step. Neither method raises."""

    def write(self, trace: StepTrace) -> None:
        """Take in one step."""
        ...

    def flush(self) -> None:
        """Let go of what is held back; no step follows soon."""
        ...


class StepTraceFile:
    """Appends steps to a file. `open_step_trace` makes one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: list[str] = []
        self._is_broken = False

    def write(self, trace: StepTrace) -> None:
        """Hold the step's line back, and write all that are held once they are many."""
        if self._is_broken:
            return
        self._held.append(trace.to_json())
        if len(self._held) >= MAX_HELD_LINES:
            self.flush()

    def flush(self) -> None:
        """Write what is held. Where that fails, say so once and trace no more."""
        if not self._held:
            return
        lines = "".join(f"{line}\n" for line in self._held)
        self._held.clear()
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines)
        except OSError as error:
            self._is_broken = True
            problem = "The trace file %s cannot be written (%s); tracing ends, serving goes on."
            logger.error(problem, self._path, error)


def open_step_trace(path: str) -> StepTraceFile:
    """Begin an empty trace file.

    Raises:
        OptionError: The file cannot be written.
    """
    file = Path(path)
    try:
        file.write_text("")
    except (OSError, ValueError) as error:  # a path may hold what no system takes
        message = f"--trace-file {path!r} cannot be written: {reason_of(error)}. Name another file."
        raise OptionError(message) from error
    return StepTraceFile(file)


def read_step_trace(path: Path) -> list[StepTrace]:
    """Return the steps of a trace file."""
    return [StepTrace.from_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
