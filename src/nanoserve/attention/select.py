"""Which attention backend serves a model on a device. Knows the backends by name only."""

import torch

from nanoserve.attention.backend import AttentionBackend
from nanoserve.attention.cpu_backend import CpuAttention, can_attend_natively
from nanoserve.attention.torch_backend import TorchAttention
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.spec.model_spec import ModelSpec


def select_backend(
    spec: ModelSpec, device: torch.device, kernels: KernelLibrary | None = None
) -> AttentionBackend:
    """Return the backend for `spec` on `device`.

    Args:
        spec: The model.
        device: Where it runs.
        kernels: The native operators, if they may be used; they serve the CPU alone. None,
            and heads they have no code for, leave it to plain torch, which serves all.
    """
    if kernels is not None and device.type == "cpu" and can_attend_natively(spec):
        return CpuAttention(kernels, spec)
    return TorchAttention(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.sliding_window)
