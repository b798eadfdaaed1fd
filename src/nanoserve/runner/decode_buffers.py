"""`StaticBuffers`: the tensors that every padded decode step reads and writes.

Allocated once for the largest shape; a recorded step is replayed on these very addresses.
Owns how rows are padded. Copies; decides no shape (see `decode_graphs`).
"""

from array import array
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from nanoserve.attention.backend import DecodeBuffers
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.units import ceil_div

Shape = tuple[int, int]  # rows, and width of the context in tokens


@dataclass(frozen=True, slots=True)
class StaticStep:
    """The part of the buffers that one shape uses: views, no copies.

    Attributes:
        token_ids: int64 [R].
        positions: int64 [R].
        attention: Where the rows' tokens lie in the pool.
        logits: float32 [R, V], written by the step.
    """

    token_ids: Tensor
    positions: Tensor
    attention: DecodeBuffers
    logits: Tensor


class StaticBuffers:
    """Inputs and output of padded decode steps, at addresses that never change.

    Rows are those of the layout, in its order and without holes; padding rows follow. One
    owner writes: the `DecodeGraphs` that holds them.
    """

    def __init__(self, pool: KVPool, max_shape: Shape, vocab_size: int) -> None:
        """Allocate.

        Args:
            pool: The pool the steps work on; has a sink block.
            max_shape: The most rows and the widest context of any step.
            vocab_size: Columns of the logits.
        """
        max_rows, max_width = max_shape
        self._block_size = pool.block_size
        self._sink_block = pool.sink_block
        device = pool.device
        self._has_pinned_staging = device.type == "cuda"
        # token ids, positions, slots and fresh blocks: one tensor, so that one copy fills them
        self._columns = torch.zeros(4, max_rows, dtype=torch.int64, device=device)
        self._context_lens = torch.ones(max_rows, dtype=torch.int32, device=device)
        table_shape = (max_rows, ceil_div(max_width, self._block_size))
        self._block_tables = torch.zeros(table_shape, dtype=torch.int32, device=device)
        self._logits = torch.zeros(max_rows, vocab_size, device=device, dtype=torch.float32)

    def step(self, shape: Shape) -> StaticStep:
        """Return the views of `shape`; two calls give the same addresses."""
        rows, width = shape
        token_ids, positions, slot_mapping, fresh_blocks = self._columns[:, :rows]
        attention = DecodeBuffers(
            slot_mapping=slot_mapping,
            block_tables=self._block_tables[:rows, : ceil_div(width, self._block_size)],
            context_lens=self._context_lens[:rows],
            fresh_blocks=fresh_blocks,
            block_size=self._block_size,
        )
        return StaticStep(token_ids, positions, attention, self._logits[:rows])

    def load(self, layout: BatchLayout | None, shape: Shape) -> None:
        """Copy a step in and pad it to `shape`.

        Args:
            layout: Decodes alone, no more of them and none longer than `shape` says; None
                for a step of padding alone.
            shape: The step's shape.
        """
        rows, width = shape
        columns, context_lens, block_tables = self._padding(rows, width)
        if layout is not None:
            num_rows, num_blocks = len(layout.context_lens), len(layout.block_tables[0])
            columns[:3, :num_rows] = torch.tensor(
                (layout.token_ids, layout.positions, layout.slot_mapping)
            )
            columns[3, : len(layout.fresh_blocks)] = torch.tensor(layout.fresh_blocks)
            context_lens[:num_rows] = torch.tensor(layout.context_lens, dtype=torch.int32)
            # Of nested tuples torch would make a tensor in more than twice the time.
            blocks = array("i", list(chain.from_iterable(layout.block_tables)))
            own_blocks = torch.frombuffer(blocks, dtype=torch.int32).view(num_rows, num_blocks)
            block_tables[:num_rows, :num_blocks] = own_blocks
            own_last = block_tables[:num_rows, num_blocks - 1 : num_blocks]
            block_tables[:num_rows, num_blocks:] = own_last
        step = self.step(shape)
        self._columns[:, :rows].copy_(columns, non_blocking=True)
        step.attention.context_lens.copy_(context_lens, non_blocking=True)
        step.attention.block_tables.copy_(block_tables, non_blocking=True)

    def _padding(self, rows: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return host tensors of padding rows: token 0 alone, written to the sink block.

        On CUDA their memory is pinned, from an allocator that does not hand it out again
        before the copy is done.
        """
        pinned, sink = self._has_pinned_staging, self._sink_block
        columns = torch.zeros(4, rows, dtype=torch.int64, pin_memory=pinned)
        columns[2] = sink * self._block_size
        columns[3] = sink
        context_lens = torch.ones(rows, dtype=torch.int32, pin_memory=pinned)
        table_shape = (rows, ceil_div(width, self._block_size))
        tables = torch.full(table_shape, sink, dtype=torch.int32, pin_memory=pinned)
        return columns, context_lens, tables
