"""Which device a boot runs on, and what the machine says of it."""

import os

import torch

from nanoserve.errors import OptionError
from nanoserve.options import Device
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.runner.device_memory import MemoryProbe


def find_device(wanted: Device) -> torch.device:
    """Return the device to run on.

    Raises:
        OptionError: CUDA was asked for and there is none.
    """
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        message = (
            "--device is cuda, and torch finds no CUDA device here; leave it out to use the CPU."
        )
        raise OptionError(message)
    return torch.device("cuda" if has_cuda and wanted != "cpu" else "cpu")


def device_facts(device: torch.device, probe: MemoryProbe) -> DeviceFacts:
    """Ask what there is, before anything is loaded."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if device.type == "cpu":
        return DeviceFacts("cpu", "this CPU", probe.read(), num_cores or 1, has_native_bf16())
    name, has_bf16 = torch.cuda.get_device_name(device), torch.cuda.is_bf16_supported()
    return DeviceFacts("cuda", name, probe.read(), num_cores or 1, has_bf16)


def has_native_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware, rather than through float32."""
    # oneDNN's own check holds for any AVX-512 processor; without the BF16 extension that
    # one multiplies through float32.
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2", "AVX512"):
        has_avx512 = torch.cpu._is_avx512_bf16_supported()
        return has_avx512 or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
