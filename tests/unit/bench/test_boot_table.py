"""The comparison as text and JSON."""

import json
import re
from typing import Any

from nanoserve.bench.boot_errors import examine, read_configs
from nanoserve.bench.boot_table import report_as_dict, report_lines

RECORD: dict[str, Any] = {
    "id": 40,
    "engine": "vllm",
    "engine_version": "0.9.1 V1",
    "config_ref": "Qwen/Qwen3-8B",
    "tensor_parallel": 1,
    "gpu": {"mem_gib": 39.49},
    "gpu_memory_utilization": 0.9,
    "max_model_len": 40_960,
    "weights_gib": 15.2683,
    "kv_cache_gib": 18.69,
    "kv_cache_tokens": 136_080,
    "max_concurrency": 3.32,
    "outcome": "ok",
}
REPORTS = [
    examine(record, read_configs())
    for record in (RECORD, {"id": 41, "engine": "vllm", "model": "Qwen9", "outcome": "oom_kv"})
]


def test_every_figure_has_a_row_and_a_summary() -> None:
    """Predicted and logged, the error with its sign, the interval, n, and the worst cases."""
    text = "\n".join(report_lines(REPORTS))

    assert re.search(r"pool +18.71 GiB +18.69 GiB +\+0.11% +1[78].\d\d GiB to 2\d.\d\d GiB", text)
    assert "pool: n 1, median 0.11%, 90th percentile 0.11%" in text
    assert "1 of 1 inside the interval" in text
    assert "worst: 40 +0.1%" in text
    assert "vllm 0.8.4: n 1" in text


def test_refusals_and_outcomes_are_counted() -> None:
    """By name, with the records; open outcomes apart."""
    text = "\n".join(report_lines(REPORTS))

    assert "model not known: 1 (41)" in text
    assert "2 records, 1 without any prediction; 1 refusals:" in text
    assert "outcome of failures: n 0, named right 0 (none); 1 left open" in text
    assert "outcome of healthy: n 1, named right 1 (100%)" in text


def test_the_same_as_json() -> None:
    """One object with the records, the summary, the outcomes and the refusals."""
    value = json.loads(json.dumps(report_as_dict(REPORTS)))

    assert [one["figure"] for one in value["summary"]] == [
        "tokens",
        "concurrency",
        "weights",
        "pool",
        "pool, all",
        "pool, those set apart included",
    ]
    assert value["refused"] == {"model not known": 1}
    assert value["records"][1]["refused"] == ["model not known: Qwen9"]
    assert value["outcomes"]["healthy"] == {"right": 1, "wrong": 0, "open": 0}
