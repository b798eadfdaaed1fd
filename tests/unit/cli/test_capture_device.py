"""Whose recordings `bench boot` shows."""

import pytest

from nanoserve.bench.bootbench import CaptureDevice
from nanoserve.cli import capture_device as module
from nanoserve.cli.capture_device import capture_device
from nanoserve.cli.this_machine import machine_gpus

NO_GPU = machine_gpus(lambda: "")
ONE_GPU = machine_gpus(lambda: "NVIDIA H200, 143771\n")


@pytest.mark.parametrize(
    ("asked", "gpus", "kind"),
    [
        ("auto", ONE_GPU, "cuda"),
        ("auto", NO_GPU, "cpu"),
        ("cpu", ONE_GPU, "cpu"),
        ("cuda", NO_GPU, "cuda"),
    ],
)
def test_a_gpu_is_taken_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, asked: str, gpus: object, kind: str
) -> None:
    """Unless another device is asked for."""
    monkeypatch.setattr(module, "machine_gpus", lambda: gpus)

    assert capture_device(asked).kind == kind  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("has", "device"),
    [
        ({"native", "bf16"}, CaptureDevice("cpu", 2, True)),
        ({"native"}, CaptureDevice("cpu", 4, True)),
        ({"native", "bf16", "amx"}, CaptureDevice("cpu", 2, False)),
        ({"bf16"}, CaptureDevice("cpu", 2, False)),
    ],
)
def test_a_cpu_records_where_its_steps_are_native(
    monkeypatch: pytest.MonkeyPatch, has: set[str], device: CaptureDevice
) -> None:
    """It needs a compiler, and no matrix unit, whose products are oneDNN's."""
    monkeypatch.setattr(module, "cpu_has", lambda: frozenset(has))

    assert capture_device("cpu") == device
