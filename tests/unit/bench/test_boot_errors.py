"""Predictions against recorded boots."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.bench.boot_errors import (
    Comparison,
    examine,
    group_medians,
    read_configs,
    read_records,
    summarise,
)
from nanoserve.errors import CorruptFileError, OptionError

CONFIGS = read_configs()
RECORD: dict[str, Any] = {
    "id": 13,
    "engine": "vllm",
    "engine_version": "0.9.x V0",
    "config_ref": "Qwen/Qwen3-0.6B",
    "tensor_parallel": 1,
    "gpu": {"mem_gib": 79.19},
    "gpu_memory_utilization": 0.8,
    "weights_gib": 1.12,
    "activation_peak_gib": 0.23,
    "non_torch_gib": 0.16,
    "kv_cache_gib": 61.84,
    "num_gpu_blocks": 36184,
    "max_model_len": 8192,
    "max_concurrency": 70.67,
}


def test_every_figure_a_record_has_both_ways() -> None:
    """Weights, tokens and concurrency from the model; the pool from the device besides."""
    report = examine(RECORD, CONFIGS)

    assert [one.figure for one in report.comparisons] == [
        "weights",
        "tokens",
        "concurrency",
        "pool",
    ]
    assert all(abs(one.error) < 0.02 for one in report.comparisons)
    assert report.refusals == ()


def test_a_pool_follows_from_blocks_too() -> None:
    """Where an engine logs blocks alone, their size is the model's."""
    report = examine(RECORD | {"kv_cache_gib": None}, CONFIGS)
    (pool,) = (one for one in report.comparisons if one.figure == "pool")

    assert pool.logged == 36_184 * 16 * 114_688


def test_a_record_without_figures_has_nothing_to_compare() -> None:
    """Nothing is guessed, and what is missing is named."""
    report = examine({"id": 1, "engine": "vllm"}, CONFIGS)

    assert report.comparisons == ()
    assert [error.kind for error in report.refusals] == ["model not known"]


@pytest.mark.parametrize(
    ("changes", "figure", "note"),
    [
        ({"gmu_source": "assumed default (not in log)"}, "facts assumed", "utilization"),
        ({"weights_gib": 1.3}, "set apart", "weights are not the model's"),
    ],
)
def test_what_is_assumed_or_doubtful_is_counted_apart(
    changes: dict[str, Any], figure: str, note: str
) -> None:
    """The prediction is made all the same."""
    report = examine(RECORD | changes, CONFIGS)
    (pool,) = (one for one in report.comparisons if one.figure.startswith("pool"))

    assert pool.figure == f"pool, {figure}"
    assert pool.notes == (note,)


def test_a_record_of_a_known_model_that_logs_nothing_is_counted() -> None:
    """It is refused by name like the others."""
    report = examine({"id": 1, "engine": "vllm", "config_ref": "Qwen/Qwen3-0.6B"}, CONFIGS)

    assert [error.kind for error in report.refusals] == ["nothing logged to compare"]


def test_a_refused_figure_leaves_the_others() -> None:
    """Without the device's memory tokens are compared, and the pool is refused."""
    report = examine(RECORD | {"gpu": {}}, CONFIGS)

    assert [one.figure for one in report.comparisons] == ["weights", "tokens", "concurrency"]
    assert [error.kind for error in report.refusals] == ["no device memory"]


def compared(figure: str, *predicted: float) -> list[Comparison]:
    return [Comparison(str(n), figure, value, 100) for n, value in enumerate(predicted)]


def test_a_summary_ranks_and_halves() -> None:
    """Errors are absolute; the percentiles are errors that occur; halves are every other."""
    (summary,) = summarise(compared("tokens", 100, 98, 104, 101))

    assert (summary.num_records, summary.worst[0].record_id) == (4, "2")
    assert summary.median == pytest.approx(0.015)
    assert [summary.p90, summary.p95] == pytest.approx([0.04, 0.04])
    assert list(summary.halves) == pytest.approx([0.02, 0.015])


def test_pools_are_summed_up_together_too() -> None:
    """Those with every fact stated, with some assumed, set apart, and with and without these."""
    comparisons = compared("pool", 101, 102) + compared("pool, facts assumed", 120)
    comparisons += compared("pool, set apart", 150)
    sizes = {one.figure: one.num_records for one in summarise(comparisons)}

    assert sizes == {
        "pool": 2,
        "pool, facts assumed": 1,
        "pool, set apart": 1,
        "pool, all": 3,
        "pool, those set apart included": 4,
    }


def test_logged_figures_inside_their_interval_are_counted() -> None:
    """Nine of ten should be."""
    inside = Comparison("1", "pool", 95, 100, bounds=(90, 101))
    outside = Comparison("2", "pool", 95, 100, bounds=(90, 99))
    summary = summarise([inside, outside])[0]

    assert summary.num_inside == 1


def test_medians_by_group_keep_their_sign() -> None:
    """So that a rule which is off one way shows."""
    groups = group_medians(compared("pool", 90, 95, 120), lambda one: one.record_id[:0])

    assert list(groups) == [""]
    assert list(groups[""]) == pytest.approx([3, -0.05, 0.2])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*RECORD, "outcome", "quantization", "num_gpus"]), JSON))
def test_no_record_crashes(changes: dict[str, Any]) -> None:
    """Whatever stands in a record, it is predicted or refused."""
    report = examine(RECORD | changes, CONFIGS)

    assert report.comparisons or report.refusals


@pytest.mark.parametrize(
    "line", ['{"model": "a"}', '{"config": {}}', '{"model": "a", "config": 1}']
)
def test_configs_need_a_model_and_its_config(tmp_path: Path, line: str) -> None:
    """The object is named by its number."""
    path = tmp_path / "configs.jsonl"
    path.write_text(json.dumps({"model": "b", "config": {}}) + "\n" + line + "\n")

    with pytest.raises(CorruptFileError, match="object 2"):
        read_configs(path)


def test_configs_of_ones_own(tmp_path: Path) -> None:
    """They stand in place of the packaged ones."""
    path = tmp_path / "configs.jsonl"
    path.write_text(json.dumps({"model": "b", "config": {"model_type": "llama"}}))

    assert read_configs(path) == {"b": {"model_type": "llama"}}


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

    with pytest.raises(OptionError, match="cannot be read"):
        read_records(tmp_path)
    with pytest.raises(CorruptFileError, match=r"it is not UTF-8 text \(byte 0\)"):
        read_records(tmp_path / "binary")
    (tmp_path / "words").write_text('{"a": 1}\n{"a": yes}\n')
    with pytest.raises(CorruptFileError, match=r"damaged: line 2, column 7 is not JSON\."):
        read_records(tmp_path / "words")
