"""`bench trace`: the shape of continuous batching, and its table."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanoserve.bench.tracebench import (
    FIXED_OPTIONS,
    OUTPUT_LENS,
    TraceReport,
    run_trace,
    trace_requests,
)
from nanoserve.cli.main import FIXED_IN_TRACE, app
from nanoserve.engine.interface import GenerationRequest
from nanoserve.engine.step_trace import open_step_trace, read_step_trace
from tests.builders import make_core, make_limits
from tests.trace_shape import check_shape
from tests.unit.launch.test_boot import folder  # noqa: F401 - a fixture

NUM_BLOCKS = 160


@pytest.fixture
def report(tmp_path: Path) -> TraceReport:
    """Return the trace of the requests over a fake runner."""
    path = tmp_path / "trace.jsonl"
    limits = make_limits(
        num_blocks=NUM_BLOCKS,
        block_size=16,
        max_num_seqs=10,
        max_num_batched_tokens=760,
        enable_prefix_caching=False,
    )
    core = make_core(limits=limits, trace=open_step_trace(str(path)))
    for index, (prompt, sampling) in enumerate(trace_requests()):
        core.add(GenerationRequest(f"r{index}", tuple(prompt), sampling))
    while core.has_work:
        core.step()
    return TraceReport(NUM_BLOCKS, tuple(read_step_trace(path)))


def test_the_requests_are_the_documented_ones() -> None:
    """Ten prompts of 760 tokens together, answers of 4 to 64 tokens that end by length."""
    prompts, samplings = zip(*trace_requests(), strict=True)

    assert (len(prompts), sum(map(len, prompts))) == (10, 760)
    assert [sampling.max_tokens for sampling in samplings] == list(OUTPUT_LENS)
    assert (OUTPUT_LENS[0], OUTPUT_LENS[-1]) == (4, 64)
    assert all(sampling.ignore_eos for sampling in samplings)


def test_a_fake_model_shows_the_shape(report: TraceReport) -> None:
    """The scheduler alone makes the shape: one prefill step, 63 decode steps."""
    check_shape(report)


def test_a_loaded_model_shows_the_shape(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    """The same through a boot, and `trace_file` keeps what was read."""
    path = tmp_path / "kept.jsonl"
    report = run_trace(str(folder), {"device": "cpu", "trace_file": str(path)})

    check_shape(report)
    assert tuple(read_step_trace(path)) == report.steps


def test_the_command_line_leaves_out_what_the_trace_fixes() -> None:
    """A flag that would do nothing is not offered."""
    assert set(FIXED_IN_TRACE) == FIXED_OPTIONS.keys()


def test_the_command_prints_the_table(folder: Path) -> None:  # noqa: F811
    """`bench trace` takes the engine's flags, and `--all-steps`."""
    arguments = ["bench", "trace", str(folder), "--device", "cpu", "--dtype", "float32"]

    result = CliRunner().invoke(app, [*arguments, "--all-steps"])

    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 3 + 1 + 1 + 64


def test_neighbours_share_a_row(report: TraceReport) -> None:
    """One row for the prefill, one for each end, one for what lies between two ends."""
    lines = report.describe().splitlines()

    assert lines[0] == "10 requests, 760 prompt tokens together, 4 to 64 output tokens"
    assert lines[1] == "1 step with prefill, 63 decode steps, 0 preemptions"
    assert lines[2].startswith("free blocks: 160 before, ")
    assert len(lines[5:]) == 1 + 10 + 10
    assert [" ".join(line.split()) for line in lines[5:8]] == [
        "0 prefill eager 760 10 0 110 admitted 10 requests",
        "1-2 decode eager 10 10 0 105",
        "3 decode eager 10 9 0 113 finished r0",
    ]


def test_every_step_has_a_row_when_asked(report: TraceReport) -> None:
    """64 steps are 64 rows, numbered from 0."""
    rows = report.describe(all_steps=True).splitlines()[5:]

    assert [int(row.split()[0]) for row in rows] == list(range(64))


def test_preemptions_are_shown(report: TraceReport) -> None:
    """A pool that is too small can be read off the table."""
    first = replace(report.steps[0], preempted=("r9", "r8"))
    text = TraceReport(NUM_BLOCKS, (first, *report.steps[1:])).describe()

    assert "2 preemptions" in text
    assert "admitted 10 requests, preempted 2 requests" in text
