"""`KVPool`: the memory all K and V live in, allocated once.

Owns the tensors. Knows nothing of who holds which block (see `sched`) or of how many
blocks there should be (see `plan`).
"""

import contextlib
import mmap

import torch
from torch import Tensor

from nanoserve.errors import InvariantError
from nanoserve.spec.kv_format import pool_format
from nanoserve.spec.model_spec import ModelSpec


class KVPool:
    """K and V of every layer, each `[num_blocks + num_sink_blocks, block_size, K, D]`.

    As int8, a block is `[block_size, K, D]` integers and behind them `[K, block_size]` float32
    scales, so that it can be hashed, kept and handed on with all that it means; its tensors
    are the bytes, `[num_blocks + num_sink_blocks, bytes of a block]`.

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
        block_shape: tuple[int, ...] = (block_size, spec.num_kv_heads, spec.head_dim)
        if dtype == torch.int8:
            head_bytes = pool_format("int8", 1).head_bytes(spec.head_dim)
            block_shape = (block_size * spec.num_kv_heads * head_bytes,)
        shape = (spec.num_layers, 2, num_stored, *block_shape)
        self._storage = _zeros(shape, dtype, device)
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


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros in memory that is there now, not at the first write.

    On a CPU it is asked for in huge pages, where the system has them: blocks lie in no order,
    and the page of each has to be found.
    """
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device).fill_(0.0)
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them says so
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).fill_(0).view(dtype).view(shape)
