"""Repeated boots: what the stages took, and boots that fail."""

from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Self

import pytest
from typer.testing import CliRunner

from nanoserve.bench.boot_bench_options import BootBenchOptions
from nanoserve.bench.boot_repeat import BootFailedError, boot_once, measure_boots, stage_lines
from nanoserve.cli.main import app
from nanoserve.options import DEFAULT_MODEL, EngineOptions
from nanoserve.plan.boot_report import BootReport, StageReport
from nanoserve.units import MIB


def report(*seconds: float, measured_bytes: int) -> BootReport:
    read, pool = seconds
    return BootReport(
        (
            StageReport("read", read, "a file"),
            StageReport("pool", pool, "", 8 * MIB, measured_bytes),
        )
    )


def test_stages_show_median_and_extremes_with_their_bytes() -> None:
    """Whatever stages were reported, in their order, each with planned beside measured."""
    reports = [
        report(0.5, 2.0, measured_bytes=8 * MIB),
        report(0.25, 1.0, measured_bytes=9 * MIB),
        report(1.0, 1.5, measured_bytes=10 * MIB),
    ]

    assert stage_lines(reports) == (
        "stage  median     min     max  planned  measured  residual",
        "read   0.50 s  0.25 s  1.00 s        -         -         -",
        "pool   1.50 s  1.00 s  2.00 s  8.0 MiB   9.0 MiB  +1.0 MiB",
        "all    2.50 s  1.25 s  2.50 s",
    )


def test_a_stage_that_only_one_boot_had_is_shown() -> None:
    """A boot may capture where another did not."""
    short = BootReport((StageReport("read", 1.0, ""),))
    long = BootReport((StageReport("read", 2.0, ""), StageReport("capture", 3.0, "")))

    lines = stage_lines([short, long])

    assert [line.split()[0] for line in lines] == ["stage", "read", "capture", "all"]
    assert lines[2].split()[1] == "3.00"


def test_a_refused_boot_is_its_message(tmp_path: Path) -> None:
    """The error of another process arrives with its words."""
    model = str(tmp_path / "nowhere")
    refusal = boot_once(EngineOptions(model=model))

    assert isinstance(refusal, str)
    assert "There is no file or folder" in refusal
    with pytest.raises(BootFailedError, match="There is no file or folder"):
        measure_boots(model, BootBenchOptions(repeat=1))


class DyingPool(nullcontext[None]):
    """A pool whose process is killed at its first task."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __enter__(self) -> Self:  # type: ignore[override]
        return self

    def map(self, *_: object) -> None:
        raise BrokenProcessPool


def test_a_killed_boot_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system kills without an error to pass on: the message says when it does that."""
    monkeypatch.setattr("nanoserve.bench.boot_repeat.ProcessPoolExecutor", DyingPool)

    with pytest.raises(BootFailedError, match="memory runs out"):
        measure_boots("unread", BootBenchOptions(repeat=1))


def test_repeat_boots_the_model_and_prints_its_stages() -> None:
    """`--repeat` boots with the first of both lists, in a process of its own."""
    arguments = ["--max-num-seqs", "2,4", "--max-model-len", "256", "--repeat", "1"]
    result = CliRunner().invoke(app, ["bench", "boot", DEFAULT_MODEL, *arguments])

    assert result.exit_code == 0, result.output
    lines = result.output.split("Boots of smollm2: 1\n")[1].splitlines()
    assert {"stage", "read", "weights", "pool", "all"} <= {line.split()[0] for line in lines}
