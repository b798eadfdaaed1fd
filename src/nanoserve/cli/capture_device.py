"""Whose recordings `bench boot` shows: a GPU's, or this machine's CPU's."""

from nanoserve.bench.bootbench import CaptureDevice
from nanoserve.cli.this_machine import cpu_has, machine_gpus
from nanoserve.options import Device


def capture_device(asked: Device) -> CaptureDevice:
    """Return what records decode steps, found without torch.

    Args:
        asked: `cpu`, `cuda`, or `auto` for the GPU if there is one.
    """
    if asked == "cuda" or (asked == "auto" and machine_gpus() is not None):
        return CaptureDevice("cuda")
    has = cpu_has()
    # With a matrix unit the products are oneDNN's, and steps are not native operators alone.
    records_natively = "native" in has and "amx" not in has
    return CaptureDevice("cpu", 2 if "bf16" in has else 4, records_natively)
