"""Predictions against recorded boots."""

from pathlib import Path

import pytest

from nanoserve.bench.boot_errors import (
    Comparison,
    compare_record,
    profile_of_record,
    read_records,
    summarise,
)
from nanoserve.errors import CorruptFileError


def test_every_figure_a_record_has_both_ways() -> None:
    """Tokens from the pool, the pool from the other parts, concurrency from tokens."""
    record = {
        "id": 13,
        "engine": "vllm",
        "engine_version": "0.9.x V0",
        "gpu": {"mem_gib": 79.19},
        "gpu_memory_utilization": 0.8,
        "weights_gib": 1.12,
        "activation_peak_gib": 0.23,
        "non_torch_gib": 0.16,
        "kv_cache_gib": 61.84,
        "num_gpu_blocks": 36184,
        "max_model_len": 8192,
        "max_concurrency": 70.67,
        "bytes_per_token_formula": 114688.0,
    }
    comparisons = list(compare_record(record))

    assert [one.figure for one in comparisons] == ["tokens", "pool", "concurrency"]
    assert all(abs(one.error) < 0.001 for one in comparisons)


def test_a_record_without_figures_has_nothing_to_compare() -> None:
    """Nothing is guessed."""
    assert list(compare_record({"id": 1, "engine": "vllm"})) == []


def test_a_summary_names_the_worst() -> None:
    """Errors are absolute; the median of three is the middle one."""
    comparisons = [
        Comparison(str(n), "pool", predicted, 100) for n, predicted in enumerate((100, 98, 104))
    ]
    (summary,) = summarise(comparisons)

    assert (summary.num_records, summary.worst.record_id) == (3, "2")
    assert summary.median == pytest.approx(0.02)
    assert summary.p95 == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.6.4-ish (2024-12, V0)", (0, 1)),
        ("~0.8/0.9 V0", (0, 7)),
        ("0.21+ (V1)", (0, 21)),
        ("0.24+ V1, model runner v2, 2026-08", (0, 24)),
        ("main 2024-07-03 (0.5.0.post1+)", (0, 1)),
        ("V1 2025-26", (0, 8)),
        ("0.1.dev20051 (2026)", (0, 24)),
        ("V1 2026", (0, 24)),
    ],
)
def test_versions_as_people_write_them(version: str, since: tuple[int, ...]) -> None:
    """The release decides, then the year; V0 is at most the last engine before 0.8."""
    record = {"engine": "vllm", "engine_version": version}

    assert profile_of_record(record).since == since


def test_files_are_read_line_by_line(tmp_path: Path) -> None:
    """Empty lines are passed over."""
    path = tmp_path / "boots.jsonl"
    path.write_text('{"id": 1}\n\n{"id": 2}\n')

    assert [record["id"] for record in read_records(path)] == [1, 2]


@pytest.mark.parametrize("line", ["[1]", "{", "[" * 100_000])
def test_a_line_that_is_no_record_is_refused(tmp_path: Path, line: str) -> None:
    """The line's number is named."""
    path = tmp_path / "boots.jsonl"
    path.write_text(f'{{"id": 1}}\n{line}\n')

    with pytest.raises(CorruptFileError, match="line 2"):
        read_records(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Neither a folder nor bytes that are no text are records."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    for path in (tmp_path, tmp_path / "binary"):
        with pytest.raises(CorruptFileError, match="cannot be read"):
            read_records(path)
