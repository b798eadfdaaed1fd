"""The stage that finds FlashInfer: what was asked for, and what this machine has."""

from typing import Any

import torch

from nanoserve.attention.flashinfer_backend import load_flashinfer
from nanoserve.errors import KernelError
from nanoserve.launch.find_device import device_facts
from nanoserve.launch.stages import Stages
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_choices import choose
from nanoserve.spec.model_spec import ModelSpec


def find_flashinfer(
    options: EngineOptions, spec: ModelSpec, device: torch.device, stages: Stages
) -> Any:
    """Return the library for attention on CUDA; None where torch attends.

    Where it was expected and is missing, the stage says why.

    Raises:
        KernelError: It was asked for and cannot serve.
    """
    choice = options.attention_backend
    if choice in ("torch", "native") or (choice == "auto" and device.type != "cuda"):
        return None
    with stages.run("attention") as stage:
        try:
            library = _load_for(options, spec, device, stages)
        except KernelError as error:
            if choice == "flashinfer":
                raise
            stage.detail = f"torch's, slower. {error}"
            return None
        stage.detail = f"FlashInfer {getattr(library, '__version__', '')}".rstrip()
    return library


def _load_for(options: EngineOptions, spec: ModelSpec, device: torch.device, stages: Stages) -> Any:
    if device.type != "cuda":
        message = f"FlashInfer runs on CUDA, and the device is {device.type}."
        raise KernelError(message)
    dtype = choose(spec, options, device_facts(device, stages.probe)).dtype
    return load_flashinfer(spec, dtype)
