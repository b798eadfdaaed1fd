"""Outcomes named from a record's figures."""

from typing import Any

import pytest

from nanoserve.bench.boot_case import read_case
from nanoserve.bench.boot_errors import read_configs
from nanoserve.bench.boot_outcomes import check_outcome


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        ({"outcome": "ok", "kv_cache_gib": 3.0}, "right"),
        ({"outcome": "ok"}, "open"),
        ({"outcome": "no_blocks", "kv_cache_gib": -1.0}, "right"),
        ({"outcome": "oom_graph", "error_text_short": "out of memory during capture"}, "right"),
        ({"outcome": "oom_kv", "error_text_short": "out of memory during capture"}, "wrong"),
        ({"outcome": "oom_load", "error_text_short": "refused: 3 GiB free < 5 wanted"}, "right"),
        ({"outcome": "oom_load", "error_text_short": "it broke"}, "open"),
        ({"outcome": "melted"}, "not recorded"),
        ({}, "not recorded"),
    ],
)
def test_verdicts(record: dict[str, Any], verdict: str) -> None:
    """What neither figures nor account tell is left open; words nobody knows are said."""
    assert check_outcome({"engine": "vllm", **record}, None).verdict == verdict


def test_a_request_is_sized_by_the_model() -> None:
    """Without an error, a pool under one longest request names the failure."""
    record = {
        "engine": "vllm",
        "engine_version": "0.11",
        "config_ref": "Qwen/Qwen3-8B",
        "max_model_len": 40_960,
        "kv_cache_gib": 4.5,
        "outcome": "max_len_too_big",
    }
    case = read_case(record, read_configs())

    assert check_outcome(record, case).verdict == "right"
    assert check_outcome(record, None).named == "ok"
