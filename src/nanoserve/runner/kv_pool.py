"""`KVPool`: the memory all K and V live in, allocated once.

Owns the tensors. Knows nothing of who holds which block (see `sched`) or of how many
blocks there should be (see `plan`).
"""

import torch
from torch import Tensor

from nanoserve.spec.model_spec import ModelSpec


class KVPool:
    """K and V of every layer, each `[num_blocks, block_size, K, D]`.

    Attributes:
        num_blocks: Blocks in the pool.
        block_size: Slots in a block.
        layers: K and V of each layer: views of one allocation.
    """

    def __init__(
        self,
        spec: ModelSpec,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (spec.num_layers, 2, num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        # `fill_` rather than `zeros`: the pages must be there now, not at the first write.
        self._storage = torch.empty(shape, dtype=dtype, device=device).fill_(0.0)
        self.layers: list[tuple[Tensor, Tensor]] = [(kv[0], kv[1]) for kv in self._storage]

    @property
    def num_bytes(self) -> int:
        """Bytes the pool occupies."""
        return self._storage.numel() * self._storage.element_size()
