"""What a boot really takes, read from the kernel in a process of its own, beside its plan."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nanoserve.kernels.kernel_build import cache_folder
from nanoserve.units import GIB, MIB
from tests.model_folders import LLAMA_1B, write_llama
from tests.native_kernels import needs_kernels, needs_native_steps

CODE = """
import sys, threading
from nanoserve.launch.boot import boot
from nanoserve.options import EngineOptions
from nanoserve.runner.host_heap import use_one_heap
use_one_heap()  # as `serve` does
model, dtype, path, kv_cache_dtype, cache_bytes = sys.argv[1:]
fields = dict(model=model, dtype=dtype, boot_report=path, kv_cache_dtype=kv_cache_dtype)
fields["weight_cache_bytes"] = int(cache_bytes)
boot(EngineOptions(device="cpu", **fields))
for thread in threading.enumerate():
    if thread.name == "keep-weights":
        thread.join()
"""


def booted_report(
    model: str, dtype: str, folder: Path, kv_cache_dtype: str = "auto", cache_bytes: int = 0
) -> dict[str, Any]:
    """Boot in a fresh interpreter, wait until its weights are kept, and return its report."""
    path = folder / "report.json"
    arguments = [sys.executable, "-c", CODE, model, dtype, str(path), kv_cache_dtype]
    arguments.append(str(cache_bytes))
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


@needs_native_steps
def test_mapped_weights_take_what_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second start maps them: each line, and the rest of the process, is as at the first."""
    (tmp_path / "kernels").symlink_to(cache_folder("kernels").resolve())
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))

    first, second = (
        booted_report("smollm2", "bfloat16", tmp_path, cache_bytes=GIB) for _ in range(2)
    )

    (stage,) = [one for one in second["stages"] if one["name"] == "weights"]
    assert "an earlier start packed" in stage["detail"]
    assert_as_planned(second)
    rests = [
        line["measured_bytes"]
        for report in (first, second)
        for line in report["budget"]
        if line["name"] == "this process at start"
    ]
    assert abs(rests[0] - rests[1]) <= 32 * MIB


@needs_kernels
def test_a_pool_of_int8_takes_what_was_planned(tmp_path: Path) -> None:
    """Its pages are this process's own, there from the start, and as many as were counted."""
    assert_as_planned(booted_report("smollm2", "bfloat16", tmp_path, "int8"))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_billion_parameters_take_what_was_planned(dtype: str, tmp_path: Path) -> None:
    """So are those of a model of the shape of Llama 3.2 1B."""
    write_llama(tmp_path, LLAMA_1B, std=0.02)

    assert_as_planned(booted_report(str(tmp_path), dtype, tmp_path))
