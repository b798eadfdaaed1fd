"""The trace of steps: what a line holds, and a file that never harms the engine."""

import json
import logging
import threading
from pathlib import Path

import pytest

from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.engine.step_trace import (
    MAX_HELD_LINES,
    StepTrace,
    StepTraceFile,
    open_step_trace,
    read_step_trace,
)
from nanoserve.errors import OptionError
from nanoserve.sched.step import FinishReason, StepExecution, StepMode
from tests.builders import (
    TIMEOUT_S,
    FailingRunner,
    make_core,
    make_limits,
    make_request,
)
from tests.fakes import FakeRunner


class ListSink:
    """Keeps the steps, and how many there were at each flush."""

    def __init__(self) -> None:
        self.steps: list[StepTrace] = []
        self.flushed_at: list[int] = []

    def write(self, trace: StepTrace) -> None:
        self.steps.append(trace)

    def flush(self) -> None:
        self.flushed_at.append(len(self.steps))


def make_step(step: int = 0) -> StepTrace:
    return StepTrace(step, "decode", StepMode.REPLAYED, 2, 2, 0, 7, 1, ("a",), ("b",), ("c",))


def traced(*requests: tuple[str, str, int], runner: FakeRunner | None = None) -> ListSink:
    """Run requests of (id, prompt, max_tokens) together, 16 tokens a step at most."""
    sink = ListSink()
    limits = make_limits(num_blocks=12, max_num_batched_tokens=16)
    core = make_core(runner, limits, trace=sink)
    for request_id, prompt, max_tokens in requests:
        core.add(make_request(request_id, prompt, max_tokens=max_tokens))
    while core.has_work:
        core.step()
    return sink


def test_a_line_holds_the_step() -> None:
    """The keys are the documented ones, and reading gives the step back."""
    line = make_step().to_json()

    assert "\n" not in line
    assert json.loads(line) == {
        "step": 0,
        "kind": "decode",
        "mode": "replayed",
        "tokens": 2,
        "running": 2,
        "waiting": 0,
        "free_blocks": 7,
        "cached_blocks": 1,
        "admitted": ["a"],
        "finished": ["b"],
        "preempted": ["c"],
    }
    assert StepTrace.from_json(line) == make_step()


def test_every_request_comes_and_goes_once() -> None:
    """Steps number on; prefill, mixed and decode steps are told apart."""
    sink = traced(("a", "twelve bytes", 3), ("b", "sixteen bytes ok", 2))

    assert [step.step for step in sink.steps] == list(range(len(sink.steps)))
    assert [step.kind for step in sink.steps] == ["prefill", "mixed", "decode"]
    assert [step.tokens for step in sink.steps] == [16, 13, 2]
    assert [step.admitted for step in sink.steps] == [("a", "b"), (), ()]
    assert [step.finished for step in sink.steps] == [(), (), ("a", "b")]
    assert [step.running for step in sink.steps] == [2, 2, 0]


def test_a_preempted_request_is_admitted_again() -> None:
    """Leaving for want of blocks and coming back both have their line."""
    sink = traced(*((f"r{i}", f"prompt{i}", 30) for i in range(4)))

    admitted = [name for step in sink.steps for name in step.admitted]
    preempted = [name for step in sink.steps for name in step.preempted]
    finished = [name for step in sink.steps for name in step.finished]
    assert preempted
    assert sorted(admitted) == sorted(preempted + [f"r{i}" for i in range(4)])
    assert sorted(finished) == [f"r{i}" for i in range(4)]


def test_free_blocks_come_back() -> None:
    """Blocks are as after the step: what a request held is free or cached in its last line."""
    sink = traced(("a", "twelve bytes", 3))

    assert sink.steps[0].free_blocks < 12
    assert sink.steps[-1].free_blocks + sink.steps[-1].cached_blocks == 12


def test_the_mode_is_the_runners() -> None:
    """What the runner says of a step stands in its line."""
    runner = FakeRunner()
    runner.execution = StepExecution(StepMode.BUCKETED)

    assert {step.mode for step in traced(("a", "x", 3), runner=runner).steps} == {"bucketed"}


def test_an_idle_engine_flushes() -> None:
    """After the last step, and after an abort that leaves nothing to do; not in between."""
    sink = ListSink()
    core = make_core(trace=sink)
    core.add(make_request("a", max_tokens=2))
    core.step()
    core.step()
    core.add(make_request("b", max_tokens=9))
    core.step()
    core.abort("b")

    assert sink.flushed_at == [2, 3]


def test_an_abort_is_in_the_next_line() -> None:
    """Ends between two steps are not lost."""
    sink = ListSink()
    core = make_core(trace=sink)
    core.add(make_request("a"))
    core.add(make_request("b"))
    core.step()
    core.abort("b")
    core.step()

    assert sink.steps[1].finished == ("b",)


def test_failed_requests_are_in_their_steps_line() -> None:
    """Out of memory ends the newest requests, and the trace says which."""
    runner = FailingRunner({0: MemoryError()})
    sink = traced(("a", "x", 3), ("b", "y", 3), runner=runner)

    assert sink.steps[0].finished == ("b",)
    assert sink.steps[-1].finished == ("a",)


def test_a_dying_loop_leaves_its_trace(tmp_path: Path) -> None:
    """The steps before the fault are on the disk."""
    path = tmp_path / "trace.jsonl"
    runner = FailingRunner({3: RuntimeError("device lost")})
    core = make_core(runner, trace=open_step_trace(str(path)))
    core.add(make_request(max_tokens=9))
    engine = AsyncEngine(core, make_limits(), max_in_flight=1)
    is_dead = threading.Event()
    engine.on_death(is_dead.set)
    engine.start()

    assert is_dead.wait(TIMEOUT_S)
    engine.shutdown()
    assert len(read_step_trace(path)) == 3


def test_lines_are_held_back(tmp_path: Path) -> None:
    """The disk is touched once for many steps."""
    path = tmp_path / "trace.jsonl"
    trace = open_step_trace(str(path))
    for step in range(MAX_HELD_LINES - 1):
        trace.write(make_step(step))

    assert path.read_text() == ""
    trace.write(make_step(MAX_HELD_LINES - 1))
    assert [step.step for step in read_step_trace(path)] == list(range(MAX_HELD_LINES))


def test_an_old_trace_is_replaced(tmp_path: Path) -> None:
    """A file holds the steps of one engine."""
    path = tmp_path / "trace.jsonl"
    path.write_text("old")
    trace = open_step_trace(str(path))
    trace.write(make_step())
    trace.flush()
    trace.flush()

    assert read_step_trace(path) == [make_step()]


@pytest.mark.parametrize(
    ("name", "reason"), [("missing/trace.jsonl", "No such file"), ("a\0b", "null")]
)
def test_a_file_that_cannot_be_written_is_an_option_error(
    tmp_path: Path, name: str, reason: str
) -> None:
    """The flag and the system's reason are named."""
    with pytest.raises(OptionError, match=f"--trace-file .*{reason}"):
        open_step_trace(str(tmp_path / name))


def test_a_file_gone_bad_ends_the_trace_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and the engine goes on."""
    trace = StepTraceFile(tmp_path)  # a folder takes no lines
    core = make_core(trace=trace)
    with caplog.at_level(logging.ERROR):
        for name in ("a", "b"):
            core.add(make_request(name))
            while core.has_work:
                core.step()

    (record,) = caplog.records
    assert "tracing ends, serving goes on" in record.message
    assert core.snapshot().finished[FinishReason.LENGTH] == 2
