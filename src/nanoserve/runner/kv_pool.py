"""`KVPool`: the memory all K and V live in, allocated once.

Owns the tensors. Knows nothing of who holds which block (see `sched`) or of how many
blocks there should be (see `plan`).
"""

import torch
from torch import Tensor

from nanoserve.errors import InvariantError
from nanoserve.spec.model_spec import ModelSpec


class KVPool:
    """K and V of every layer, each `[num_blocks + num_sink_blocks, block_size, K, D]`.

    Padded steps need one sink block, behind the others: padding rows write there, and no
    request ever holds it.

    Attributes:
        num_blocks: Blocks that requests can hold.
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
        num_sink_blocks: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._num_sink_blocks = num_sink_blocks
        num_stored = num_blocks + num_sink_blocks
        shape = (spec.num_layers, 2, num_stored, block_size, spec.num_kv_heads, spec.head_dim)
        # `fill_` rather than `zeros`: the pages must be there now, not at the first write.
        self._storage = torch.empty(shape, dtype=dtype, device=device).fill_(0.0)
        self.layers: list[tuple[Tensor, Tensor]] = [(kv[0], kv[1]) for kv in self._storage]

    @property
    def device(self) -> torch.device:
        """Where the pool lies."""
        return self._storage.device

    @property
    def sink_block(self) -> int:
        """Id of the block that padding rows write to.

        Raises:
            InvariantError: The pool was made without one.
        """
        if self._num_sink_blocks == 0:
            message = (
                f"the pool of {self.num_blocks} blocks has no sink block, and a step is padded"
            )
            raise InvariantError(message)
        return self.num_blocks

    @property
    def num_bytes(self) -> int:
        """Bytes the pool occupies, the sink block's with them."""
        return self._storage.numel() * self._storage.element_size()
