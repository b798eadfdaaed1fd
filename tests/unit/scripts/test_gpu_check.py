"""`scripts/gpu_check.py`: its equality checks and its tables, on the CPU."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

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
