"""`scripts/gpu_check.py`: its equality checks and its tables, on the CPU."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_check.py"


def test_tiny_check_passes_on_the_cpu() -> None:
    """Every mode serves the same tokens, and each prints its budget and its gaps."""
    arguments = [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny"]

    result = subprocess.run(arguments, capture_output=True, text=True, timeout=120)

    assert result.returncode == 0, result.stderr
    assert "three modes" in result.stdout
    assert result.stdout.count("between tokens: p50") == 2
    assert result.stdout.count("alone: ") == 2
    assert "kv pool" in result.stdout


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def mismatches(script: ModuleType, change: Callable[[dict, dict], None]) -> list[str]:  # type: ignore[type-arg]
    modes = ("eager", "bucketed", "captured")
    outcomes = {mode: script.Outcome({"a": [1, 2]}) for mode in modes}
    pools = {mode: [torch.ones(3)] for mode in modes}
    change(outcomes, pools)
    found: list[str] = script.find_mismatches(outcomes, pools)
    return found


def test_equal_modes_have_no_mismatch(script: ModuleType) -> None:
    """The same tokens and the same bits."""
    assert mismatches(script, lambda outcomes, pools: None) == []


def test_another_token_or_bit_is_a_mismatch(script: ModuleType) -> None:
    """A token names both neighbours of the rung; a bit of KV is found without any token."""

    def change_token(outcomes: dict, pools: dict) -> None:  # type: ignore[type-arg]
        outcomes["captured"].token_ids["a"] = [1, 3]

    def change_bit(outcomes: dict, pools: dict) -> None:  # type: ignore[type-arg]
        pools["captured"][0][1] = 1.0000001

    assert mismatches(script, change_token) == [
        "captured and eager differ in 50.0% of tokens",
        "captured and bucketed answer differently",
    ]
    assert mismatches(script, change_bit) == ["captured and bucketed write different K and V"]


def test_the_floor_is_weights_over_bandwidth(script: ModuleType) -> None:
    """3.35 GB at 3.35 TB/s take 1 ms; a step of 1.25 ms is at 80 % of the floor."""
    booted = SimpleNamespace(plan=SimpleNamespace(weight_bytes=3_350_000_000))

    words = script.describe_alone(0.00125, booted, 3.35e12)

    assert words == (
        "alone: 800.0 tokens/s, 1.25 ms a step; floor 1.00 ms at 3,350 GB/s: 80% of it"
    )


def test_bandwidth_is_measured_in_bytes_a_second(script: ModuleType) -> None:
    """Somewhere between a very slow and a very fast memory."""
    assert 1e8 < script.measure_bandwidth("cpu", 1 << 24) < 1e13
