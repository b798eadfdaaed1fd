"""Which attention backend serves a model on a device. Knows the backends by name only."""

import torch

from nanoserve.attention.backend import AttentionBackend
from nanoserve.attention.deterministic_backend import DeterministicAttention
from nanoserve.attention.torch_backend import TorchAttention
from nanoserve.errors import OptionError
from nanoserve.spec.model_spec import ModelSpec


def select_backend(
    spec: ModelSpec, device: torch.device, is_deterministic: bool = False
) -> AttentionBackend:
    """Return the backend for `spec` on `device`: plain torch, which serves all of them.

    Args:
        spec: The model.
        device: Where it runs.
        is_deterministic: Whether a token's bits must not depend on what it is computed with.

    Raises:
        OptionError: They must not, and no backend can promise it on this device.
    """
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
