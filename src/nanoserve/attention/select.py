"""Which attention backend serves a model on a device. Knows the backends by name only."""

import torch

from nanoserve.attention.backend import AttentionBackend
from nanoserve.attention.torch_backend import TorchAttention
from nanoserve.spec.model_spec import ModelSpec


def select_backend(spec: ModelSpec, device: torch.device) -> AttentionBackend:
    """Return the backend for `spec` on `device`: plain torch, which serves all of them."""
    del device  # every device has the same backend so far
    return TorchAttention(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.sliding_window)
