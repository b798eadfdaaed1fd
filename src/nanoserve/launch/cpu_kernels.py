"""The stage that finds native operators: what was asked for, and what this machine has."""

import torch

from nanoserve.attention.cpu_backend import check_native_shape
from nanoserve.errors import KernelError
from nanoserve.kernels.kernel_library import KernelLibrary, load_kernels
from nanoserve.launch.stages import Stages
from nanoserve.options import EngineOptions
from nanoserve.spec.model_spec import ModelSpec


def find_kernels(
    options: EngineOptions, spec: ModelSpec, device: torch.device, stages: Stages
) -> KernelLibrary | None:
    """Return the native operators, built now if need be; None where plain torch serves.

    Where they were expected and are missing, the stage says why.

    Raises:
        KernelError: They were asked for, or what they alone serve, and they cannot serve.
    """
    choice = options.attention_backend
    if choice in ("torch", "flashinfer") or (choice == "auto" and device.type != "cpu"):
        return None
    with stages.run("kernels") as stage:
        try:
            kernels = _load_for(spec, device)
        except KernelError as error:
            if choice == "native":
                raise
            _refuse_without(options, error)
            stage.detail = f"none, plain torch serves, slower. {error}"
            return None
        stage.detail = f"native operators, {kernels.describe()}"
    return kernels


def native_steps(kernels: KernelLibrary | None, is_compiled: bool) -> KernelLibrary | None:
    """Return the operators that whole decode steps are made of; None where torch has a part.

    It has one in layers that are compiled, and where the CPU has a matrix unit, whose
    products are oneDNN's.
    """
    is_mixed = is_compiled or torch.cpu._is_amx_tile_supported()
    return None if is_mixed else kernels


def _refuse_without(options: EngineOptions, error: KernelError) -> None:
    """Refuse what native operators alone serve, with what is in their way."""
    needing = []
    if options.quantization != "none":
        needing.append(f"--quantization {options.quantization}")
    if options.kv_cache_dtype != "auto":
        needing.append(f"--kv-cache-dtype {options.kv_cache_dtype}")
    if needing:
        flags = " and ".join(needing)
        message = f"{flags}: native operators alone serve that. Leave it out, or mend this: {error}"
        raise KernelError(message) from error


def _load_for(spec: ModelSpec, device: torch.device) -> KernelLibrary:
    if device.type != "cpu":
        message = f"Native operators run on the CPU, and the device is {device.type}."
        raise KernelError(message)
    check_native_shape(spec)
    return load_kernels()
