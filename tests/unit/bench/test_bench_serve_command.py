"""`nanoserve bench serve` from its flags to its files."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nanoserve.bench.load_generator import LoadResult
from nanoserve.bench.request_record import RequestRecord
from nanoserve.bench.serve_bench_options import ServeBenchOptions
from nanoserve.bench.serve_plot import write_plot
from nanoserve.bench.serve_report import ServeReport
from nanoserve.bench.servebench import run_bench
from nanoserve.cli.main import app
from nanoserve.errors import OptionError
from tests.openai_server import OK, Answer, Body, event, openai_server, refusal, usage

SMALL = ["--num-requests", "3", "--prompt-tokens", "4-8", "--output-tokens", "3"]


def run(*arguments: str) -> Result:
    """Return what `bench serve` came to."""
    return CliRunner().invoke(app, ["bench", "serve", *SMALL, *arguments])


def test_report_is_printed_and_written(tmp_path: Path) -> None:
    """Rates for people, every request in the files; the bar shows on a terminal alone."""
    files = ["--json", str(tmp_path / "r.json"), "--csv", str(tmp_path / "r.csv")]
    with openai_server() as server:
        result = run("--url", server.url, "--slo", "ttft=10000,itl=10000", *files)

    assert result.exit_code == 0, result.output
    assert "3 requests, 3 at once, 4-8 prompt + 3 output tokens each; a-model" in result.stdout
    assert "output " in result.stdout
    assert "goodput" in result.stdout
    assert result.stderr == ""
    saved = json.loads((tmp_path / "r.json").read_text())
    seconds = pytest.approx(saved["seconds"], abs=0.0001)  # which are rounded in the file
    assert 3 / saved["goodput_per_s"] == seconds
    with (tmp_path / "r.csv").open() as file:
        assert [row["output_tokens"] for row in csv.DictReader(file)] == ["3", "3", "3"]


def test_exit_code_tells_of_failed_requests() -> None:
    """The report is printed all the same."""
    count = 0

    async def answer(body: Body) -> Answer:
        nonlocal count
        count += 1
        if count == 3:
            yield refusal(500, "oops")
            return
        yield OK + event("a", "length") + usage(4, 3)

    with openai_server(answer) as server:
        result = run("--url", server.url)

    assert result.exit_code == 1
    assert "failed 1: HTTP 500: oops" in result.stdout


@pytest.mark.parametrize("flag", ["--json", "--csv", "--plot"])
@pytest.mark.parametrize("name", ["absent/r.png", "folder.png", "r.png/r.png"])
def test_a_file_that_cannot_be_written_is_refused_before_the_load(
    flag: str, name: str, tmp_path: Path
) -> None:
    """Nothing is sent for a report that would be lost: no folder, or what is one, or is none."""
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "r.png").touch()
    with openai_server() as server:
        result = run("--url", server.url, flag, str(tmp_path / name))

    assert isinstance(result.exception, OptionError)
    assert str(result.exception).startswith(f"{flag} '{tmp_path / name}' cannot be written: ")
    assert server.bodies == []


def test_two_reports_in_one_file_are_refused(tmp_path: Path) -> None:
    """The second would be written over the first."""
    with openai_server() as server:
        path = str(tmp_path / "r")
        result = run("--url", server.url, "--json", path, "--csv", f"{tmp_path}/./r")

    assert "--json and --csv both name" in str(result.exception)
    assert server.bodies == []
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_loses_one_file_and_no_other(tmp_path: Path) -> None:
    """The report is printed, the other file is there, and the error names the first."""
    with openai_server() as server:
        result = run("--url", server.url, "--json", "/dev/full", "--csv", str(tmp_path / "r.csv"))

    assert isinstance(result.exception, OptionError)
    assert "--json '/dev/full' cannot be written: No space left" in str(result.exception)
    assert "output " in result.stdout
    assert (tmp_path / "r.csv").read_text().count("\n") == 4


def test_plot_without_matplotlib_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before anything is sent."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with openai_server() as server:
        result = run("--url", server.url, "--plot", str(tmp_path / "r.png"))

    assert "nanoserve[plot]" in str(result.exception)
    assert server.bodies == []


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_is_drawn_in_the_format_of_its_name(ending: str, tmp_path: Path) -> None:
    """A PNG is one, and an SVG the other."""
    path = tmp_path / f"r.{ending}"
    with openai_server() as server:
        report = run_bench(ServeBenchOptions(url=server.url, num_requests=3, output_tokens="3"))
    write_plot(report, path)

    start = {"png": b"\x89PNG", "svg": b"<?xml"}[ending]
    assert path.read_bytes().startswith(start)


def test_plot_names_its_axes_and_percentiles(tmp_path: Path) -> None:
    """A reader needs no manual: what, in which unit, and how long half and nearly all took."""
    times = (0.1, 0.11, 0.12, 0.13, 0.14, 2.0)  # a tail of 188 medians: a logarithmic axis
    record = RequestRecord("stream", 10, 6, 6, 0.0, times, 2.0, "length")
    load = LoadResult((record,), 2.0, 0.05)
    write_plot(ServeReport("m", "one request", "ignore_eos", load, {}), tmp_path / "r.svg")

    drawing = (tmp_path / "r.svg").read_text()
    comments = re.findall(r"<!-- (.*?) -->", drawing)
    assert "Time to first token (TTFT)" in comments
    assert "p50: 100.0 ms" in comments
    assert "p99: 1,860.0 ms" in comments
    assert "ms, logarithmic" in comments
    assert comments.count("seconds since the load began") == 2


def test_plot_of_answers_of_one_token(tmp_path: Path) -> None:
    """There is no gap between tokens then, and that is said."""
    record = RequestRecord("stream", 10, 1, 1, 0.0, (0.1,), 0.1, "length")
    load = LoadResult((record,), 1.0, 0.05)
    write_plot(ServeReport("m", "one request", "ignore_eos", load, {}), tmp_path / "r.svg")

    assert "<!-- none -->" in (tmp_path / "r.svg").read_text()
