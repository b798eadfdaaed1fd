"""115 start-ups of real engines: their logs read back, their outcomes named, their sums.

Source: public issues, pull requests and documents of the engines; each record has its URL
where there is one. What depends on the model's shape is not judged here.
"""

import pytest

from nanoserve.bench.boot_errors import compare_record, summarise
from nanoserve.plan.boot_log import read_boot_log
from nanoserve.plan.boot_outcome import name_outcome
from nanoserve.plan.boot_record import boot_of_record
from nanoserve.plan.logged_boot import LoggedBoot
from nanoserve.units import GIB
from tests.boot_logs import Record, log_of, outcome_of, records

RECORDS = records()
SIZES = (
    "weight_bytes",
    "consumed_bytes",
    "activation_bytes",
    "non_torch_bytes",
    "graph_bytes",
    "graph_estimate_bytes",
    "pool_bytes",
    "total_bytes",
    "free_bytes",
)
COUNTS = ("num_blocks", "pool_tokens", "max_model_len", "max_concurrency", "utilization")
LOG_DIGIT = 0.006 * GIB  # logs print two digits of a GiB

# Failures whose record does not say what was being done.
OPEN = {126, 130, 149, 206, 211}
# Healthy boots of which only the weights are recorded.
CUT = {4, 217, 218}
# Bytes per token depend on layers that a formula over all of them does not see: state pages
# (28, 29, 37, 171, 180), groups of layers (44), latent attention before it was used (111).
HYBRID = {28, 29, 37, 44, 111, 171, 180}


def by_id(record: Record) -> str:
    return str(record["id"])


def request_bytes(record: Record) -> int | None:
    if "bytes_per_token_formula" not in record or "max_model_len" not in record:
        return None
    return int(record["bytes_per_token_formula"] * record["max_model_len"])


@pytest.mark.parametrize("record", RECORDS, ids=by_id)
def test_a_log_written_from_a_record_reads_back(record: Record) -> None:
    """In each engine's format every figure comes back, and the outcome is named right."""
    read, written = read_boot_log(log_of(record)), boot_of_record(record)

    assert name_outcome(read).kind == outcome_of(record)
    for name in SIZES:
        both = getattr(read, name), getattr(written, name)
        assert None in both or abs(both[0] - both[1]) <= LOG_DIGIT, name
    for name in COUNTS:
        both = getattr(read, name), getattr(written, name)
        assert None in both or both[0] == pytest.approx(both[1], abs=0.006), name


@pytest.mark.parametrize("record", RECORDS, ids=by_id)
def test_outcomes_from_recorded_figures(record: Record) -> None:
    """Figures and a person's account of the error name the outcome, or leave it open."""
    outcome = name_outcome(boot_of_record(record), request_bytes(record))

    expected = "unknown" if record["id"] in OPEN | CUT else outcome_of(record)
    assert outcome.kind == expected


def test_colours_ranks_and_wraps_change_nothing() -> None:
    """The same log in a container's, a terminal's and a paste's dress reads the same."""
    for record in RECORDS:
        log = log_of(record)
        plain = read_boot_log(log)

        assert read_boot_log(log.replace("\n", "\r\n")) == plain
        assert read_boot_log(log.replace("INFO", "\x1b[32mINFO\x1b[0m")) == plain
        assert _figures(read_boot_log(log.replace("\n", "\nvllm-1  | "))) == _figures(plain)


def test_sums_of_recorded_boots() -> None:
    """Tokens follow from a pool to 0.1 %, and a pool from the logged parts to 5 %."""
    comparisons = [
        one for record in RECORDS if record["id"] not in HYBRID for one in compare_record(record)
    ]
    summaries = {one.figure: one for one in summarise(comparisons)}

    assert summaries["tokens"].num_records == 29
    assert summaries["tokens"].median < 0.001
    assert summaries["tokens"].p95 < 0.004
    assert summaries["pool"].num_records == 21
    assert summaries["pool"].median < 0.002
    assert summaries["pool"].p95 < 0.05


def _figures(boot: LoggedBoot) -> list[object]:
    return [getattr(boot, name) for name in SIZES + COUNTS]
