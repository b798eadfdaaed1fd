"""What a boot really takes, read from the kernel in a process of its own, beside its plan."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nanoserve.units import MIB
from tests.model_folders import LLAMA_1B, write_llama

CODE = """
import sys
from nanoserve.launch.boot import boot
from nanoserve.options import EngineOptions
from nanoserve.runner.host_heap import use_one_heap
use_one_heap()  # as `serve` does
boot(EngineOptions(model=sys.argv[1], device="cpu", dtype=sys.argv[2], boot_report=sys.argv[3]))
"""


def booted_report(model: str, dtype: str, folder: Path) -> dict[str, Any]:
    """Boot in a fresh interpreter and return its report."""
    path = folder / "report.json"
    arguments = [sys.executable, "-c", CODE, model, dtype, str(path)]
    subprocess.run(arguments, check=True, timeout=300)
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def assert_as_planned(report: dict[str, Any]) -> None:
    """Resident memory grew by the plan in the stages that keep it: 3 % and 16 MiB either way."""
    stages = {stage["name"]: stage for stage in report["stages"]}
    for name in ("weights", "pool", *(["capture"] if "capture" in stages else [])):
        planned = stages[name]["planned_bytes"]
        assert abs(stages[name]["residual_bytes"]) <= 0.03 * planned + 16 * MIB, stages[name]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_default_model_takes_what_was_planned(dtype: str, tmp_path: Path) -> None:
    """SmolLM2's weights, packed or not, and its pool are resident as planned."""
    assert_as_planned(booted_report("smollm2", dtype, tmp_path))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_billion_parameters_take_what_was_planned(dtype: str, tmp_path: Path) -> None:
    """So are those of a model of the shape of Llama 3.2 1B."""
    write_llama(tmp_path, LLAMA_1B, std=0.02)

    assert_as_planned(booted_report(str(tmp_path), dtype, tmp_path))
