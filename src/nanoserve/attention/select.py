"""Which attention backend serves a model on a device. Knows the backends by name only."""

from typing import Any

import torch

from nanoserve.attention.backend import AttentionBackend
from nanoserve.attention.cpu_backend import CpuAttention
from nanoserve.attention.deterministic_backend import DeterministicAttention
from nanoserve.attention.flashinfer_backend import FlashInferAttention
from nanoserve.attention.torch_backend import TorchAttention
from nanoserve.errors import OptionError
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.spec.model_spec import ModelSpec


def select_backend(
    spec: ModelSpec,
    device: torch.device,
    kernels: KernelLibrary | None = None,
    is_deterministic: bool = False,
    flashinfer: Any = None,
) -> AttentionBackend:
    """Return the backend for `spec` on `device`: the CPU's own, FlashInfer, or plain torch.

    Args:
        spec: The model.
        device: Where it runs.
        kernels: Native operators that serve this model on this device; None if there are none.
        is_deterministic: Whether a token's bits must not depend on what it is computed with.
            The CPU's own backend keeps that by itself.
        flashinfer: The library, where it serves this model on this device; None elsewhere.

    Raises:
        KernelError: The operators do not serve the model.
        OptionError: Bits must not depend on company, and no backend can promise it here.
    """
    if kernels is not None and device.type == "cpu":
        return CpuAttention(kernels, spec)
    if flashinfer is not None and not is_deterministic:
        return FlashInferAttention(flashinfer, spec, device)
    if not is_deterministic:
        num_heads, num_kv_heads = spec.num_heads, spec.num_kv_heads
        return TorchAttention(num_heads, num_kv_heads, spec.head_dim, spec.sliding_window)
    if device.type != "cpu":
        message = (
            f"--deterministic is kept on the CPU alone, and the device is {device.type}: its "
            "libraries choose their kernels by the size of the batch. Add --device cpu, or "
            "leave --deterministic out."
        )
        raise OptionError(message)
    return DeterministicAttention(spec)
