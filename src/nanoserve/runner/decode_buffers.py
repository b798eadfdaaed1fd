"""`StaticBuffers`: the tensors that every padded decode step reads and writes.

Allocated once for the largest shape; a recorded step is replayed on these very addresses.
Owns how rows are padded. Copies; decides no shape (see `decode_graphs`).
"""

from array import array
from dataclasses import dataclass

import torch
from torch import Tensor

from nanoserve.attention.backend import DecodeBuffers, HostRows
from nanoserve.plan.boot_checks import BufferShape
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

    Attributes:
        logits: float32 [R_max, V], the last step's.
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
        self.logits = torch.zeros(max_rows, vocab_size, device=device, dtype=torch.float32)
        self._steps: dict[Shape, StaticStep] = {}

    @property
    def shape(self) -> BufferShape:
        """What the buffers were made for."""
        max_rows, num_blocks = self._block_tables.shape
        return BufferShape(max_rows, num_blocks, self._block_size, self._sink_block)

    def step(self, shape: Shape) -> StaticStep:
        """Return the views of `shape`; two calls give the same."""
        if shape not in self._steps:
            self._steps[shape] = self._view(shape)
        return self._steps[shape]

    def _view(self, shape: Shape) -> StaticStep:
        rows, width = shape
        token_ids, positions, slot_mapping, fresh_blocks = self._columns[:, :rows]
        attention = DecodeBuffers(
            slot_mapping=slot_mapping,
            block_tables=self._block_tables[:rows, : ceil_div(width, self._block_size)],
            context_lens=self._context_lens[:rows],
            fresh_blocks=fresh_blocks,
            block_size=self._block_size,
        )
        return StaticStep(token_ids, positions, attention, self.logits[:rows])

    def load(self, layout: BatchLayout | None, shape: Shape) -> HostRows:
        """Copy a step in, pad it to `shape`, and return what its rows are.

        Args:
            layout: Decodes alone, no more of them and none longer than `shape` says; None
                for a step of padding alone.
            shape: The step's shape.
        """
        rows, width = shape
        num_columns = ceil_div(width, self._block_size)
        columns, context_lens, block_tables = self._padding_rows(rows, num_columns)
        if layout is not None:
            num_rows = len(layout.context_lens)
            for index, values in enumerate(
                (layout.token_ids, layout.positions, layout.slot_mapping, layout.fresh_blocks)
            ):
                columns[index * rows : index * rows + len(values)] = array("q", values)
            context_lens[:num_rows] = array("i", layout.context_lens)
            for row, table in enumerate(layout.block_tables):
                start, end = row * num_columns, row * num_columns + len(table)
                block_tables[start:end] = array("i", table)
                num_missing = num_columns - len(table)
                block_tables[end : end + num_missing] = array("i", table[-1:]) * num_missing
        self._fill(self._columns[:, :rows], columns)
        step = self.step(shape)
        self._fill(step.attention.context_lens, context_lens)
        self._fill(step.attention.block_tables, block_tables)
        return HostRows(context_lens, block_tables, num_columns)

    def _padding_rows(self, rows: int, num_columns: int) -> tuple["array[int]", ...]:
        """Return columns, lengths and tables of padding: token 0 alone, written to the sink."""
        sink_slot = self._sink_block * self._block_size
        values = (0, 0, sink_slot, self._sink_block)
        columns = array("q", [value for value in values for _ in range(rows)])
        sinks = array("i", [self._sink_block]) * (rows * num_columns)
        return columns, array("i", [1]) * rows, sinks

    def _fill(self, to: Tensor, values: "array[int]") -> None:
        """Copy to the device.

        On CUDA by way of pinned memory, from an allocator that does not hand it out again
        before the copy is done.
        """
        host = torch.frombuffer(values, dtype=to.dtype).view(to.shape)
        to.copy_(host.pin_memory() if self._has_pinned_staging else host, non_blocking=True)
