"""Which attention backend serves a model on a device. Knows the backends by name only."""

import torch

from nanoserve.attention.backend import AttentionBackend
from nanoserve.attention.cpu_backend import CpuAttention
from nanoserve.attention.torch_backend import TorchAttention
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.spec.model_spec import ModelSpec


def select_backend(
    spec: ModelSpec, device: torch.device, kernels: KernelLibrary | None = None
) -> AttentionBackend:
    """Return the backend for `spec` on `device`: plain torch, or the CPU's own.

    Args:
        spec: The model.
        device: Where it runs.
        kernels: Native operators that serve this model on this device; None if there are none.

    Raises:
        KernelError: They do not serve it.
    """
    if kernels is not None and device.type == "cpu":
        return CpuAttention(kernels, spec)
    return TorchAttention(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.sliding_window)
