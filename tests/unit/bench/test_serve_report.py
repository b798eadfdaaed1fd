"""Rates, percentiles and goodput of a load, worked out by hand."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from nanoserve.bench.load_generator import LoadResult
from nanoserve.bench.request_record import RequestRecord, percentile
from nanoserve.bench.serve_report import ServeReport

QUICK = RequestRecord("stream", 10, 4, 4, 0.0, (0.1, 0.2, 0.3, 0.4), 0.4, "length", "usage")
SLOW = RequestRecord("stream", 20, 4, 3, 1.0, (1.8, 1.9, 2.0), 2.0, "stop", "usage")
FAILED = RequestRecord("stream", 10, 4, 0, 0.0, (), 0.1, error="HTTP 503: busy")
CUT = RequestRecord("stream", 10, 9, 2, 0.0, (0.5, 1.5), 2.0, None, "events", is_cut=True)


def report_of(*records: RequestRecord, **limits_s: float) -> ServeReport:
    """Return the report of a run of 2 s."""
    return ServeReport("m", "load", "ignore_eos", LoadResult(records, 2.0, 0.05), limits_s)


def test_rates_are_over_the_whole_time() -> None:
    """Tokens of what was answered; a failed request counts for none."""
    figures = report_of(QUICK, SLOW, FAILED).figures()

    assert figures["output_tokens_per_s"] == 3.5
    assert figures["total_tokens_per_s"] == 18.5
    assert figures["requests_per_s"] == 1.0
    assert figures["client_cpu_fraction"] == 0.025
    assert (figures["num_answered"], figures["num_failed"], figures["num_ended_early"]) == (2, 1, 1)


def test_times_are_those_of_tokens() -> None:
    """TTFT from sending, ITL between events, TPOT the mean after the first, e2e to the last."""
    figures = report_of(SLOW).figures()

    assert figures["ttft_p50_ms"] == pytest.approx(800)
    assert figures["itl_p99_ms"] == pytest.approx(100)
    assert figures["tpot_p50_ms"] == pytest.approx(100)
    assert figures["e2e_max_ms"] == pytest.approx(1000)


@pytest.mark.parametrize(
    ("limits_s", "kept"),
    [
        ({"ttft": 0.5}, 1),
        ({"ttft": 0.9, "itl": 0.101}, 2),
        ({"itl": 0.05}, 0),
        ({"e2e": 0.5}, 1),
        ({"tpot": 0.101}, 2),
    ],
)
def test_goodput_counts_requests_that_kept_every_limit(
    limits_s: dict[str, float], kept: int
) -> None:
    """Per second; a failed or cut one kept none."""
    report = report_of(QUICK, SLOW, FAILED, CUT, **limits_s)

    assert report.goodput_per_s == kept / 2
    assert f"goodput {kept / 2:.2f} requests/s" in report.describe()


def test_no_limits_no_goodput() -> None:
    """Nothing is promised where nothing was asked."""
    report = report_of(QUICK)

    assert "goodput_per_s" not in report.figures()
    assert "goodput" not in report.describe()


def test_a_cut_answer_has_gaps_and_no_end() -> None:
    """It counts for tokens and ITL, not for e2e."""
    figures = report_of(CUT).figures()

    assert (figures["output_tokens"], figures["itl_p50_ms"]) == (2, 1000)
    assert (figures["e2e_p50_ms"], figures["requests_per_s"]) == (0, 0)


def test_a_gap_belongs_to_the_time_of_its_end() -> None:
    """Half-open: an intruder's own moment is no longer quiet."""
    report = report_of(QUICK)

    assert report.gaps_s(before_s=0.3) == pytest.approx([0.1])
    assert report.gaps_s(after_s=0.3) == pytest.approx([0.1, 0.1])


def test_quiet_begins_once_all_streams_have_begun() -> None:
    """What the first waits for while the second's prompt is read is no quiet gap."""
    streams = [
        RequestRecord("stream", 1, 9, 9, 0.0, times, 9.0, is_cut=True)
        for times in ((0.1, 0.9, 1.0, 1.1, 1.6), (0.95, 1.0, 1.1, 1.5))
    ]
    intruder = RequestRecord("intruder", 9, 2, 2, 1.2, (1.4, 1.5), 1.5)

    figures = replace(report_of(*streams, intruder), first_intruder_s=1.2).figures()

    assert figures["quiet_itl_p99_ms"] == pytest.approx(100)
    assert figures["disturbed_itl_max_ms"] == pytest.approx(500)


def test_errors_are_said_with_their_number() -> None:
    """The most frequent first, and those not shown are counted."""
    others = [
        RequestRecord("stream", 1, 1, 0, 0.0, (), 0.0, error=f"error {index}") for index in range(6)
    ]
    lines = report_of(QUICK, FAILED, FAILED, *others).describe().splitlines()

    assert "failed 2: HTTP 503: busy" in lines
    assert lines[-1].startswith("failed 2: in other ways")


def test_files_have_every_request(tmp_path: Path) -> None:
    """Failed ones with their error."""
    report = report_of(QUICK, FAILED)
    report.write_json(tmp_path / "r.json")
    report.write_csv(tmp_path / "r.csv")
    saved = json.loads((tmp_path / "r.json").read_text())
    with (tmp_path / "r.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert saved["output_tokens_per_s"] == 2.0
    assert [request["error"] for request in saved["requests"]] == [None, "HTTP 503: busy"]
    assert [row["ttft_ms"] for row in rows] == ["100.0", ""]
    assert rows[0].keys() == saved["requests"][0].keys()


def test_percentiles_are_of_the_nearest_rank() -> None:
    """Of nothing they are 0."""
    values = [float(value) for value in range(101)]

    assert percentile(values[::-1], 0.99) == 99
    assert percentile([3.0], 0.5) == 3
    assert percentile([], 0.5) == 0
