"""The protocol every attention implementation follows, and what it is handed.

A backend knows the paged pool's layout and nothing of models or schedules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Where each token of a step lies, the same for every layer.

    Requests are in the plan's order: decodes (one token each) first, then prefill chunks.

    Attributes:
        slot_mapping: int64 [T], slot of each token in the pool.
        block_tables: int32 [R, N_max], blocks of each request, padded with its own last.
        context_lens: int32 [R], KV length of each request with this step's tokens.
        query_starts: int32 [R + 1], where each request's tokens begin in the step.
        fresh_blocks: int64 [F], blocks that this step begins and does not fill.
        query_lens: The tokens of each request in this step, as host ints.
        host_context_lens: `context_lens` as host ints.
        num_decodes: How many leading requests have exactly one token.
        block_size: Slots in a block.
    """

    slot_mapping: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_starts: Tensor
    fresh_blocks: Tensor
    query_lens: tuple[int, ...]
    host_context_lens: tuple[int, ...]
    num_decodes: int
    block_size: int


@dataclass(frozen=True, slots=True)
class DecodeBuffers:
    """Where the tokens of a padded decode step lie: tensors alone, the same ones every step.

    A recorded step is replayed on these very tensors, so nothing about it may depend on
    a host int but the shape. A padding row has context length 1, its block table and its
    slot point to the sink block, and what it computes is never read.

    Attributes:
        slot_mapping: int64 [R], slot of each row's token.
        block_tables: int32 [R, ceil(W / block_size)], W the shape's width in tokens; a row
            shorter than that is padded with its own last block.
        context_lens: int32 [R], KV length of each row with this step's token, at most W.
        fresh_blocks: int64 [R], first the blocks that this step begins and does not fill, at
            most one for each row; then the sink block, over and over.
        block_size: Slots in a block.
    """

    slot_mapping: Tensor
    block_tables: Tensor
    context_lens: Tensor
    fresh_blocks: Tensor
    block_size: int


@dataclass(frozen=True, slots=True)
class HostRows:
    """What a padded decode step was loaded with, as host ints; valid until the next one.

    Attributes:
        context_lens: KV length of each row; 1 for padding.
        block_tables: Row after row, each padded with its own last block.
        num_columns: Blocks of a row.
    """

    context_lens: Sequence[int]
    block_tables: Sequence[int]
    num_columns: int

    def table(self, row: int) -> Sequence[int]:
        """Return the blocks of a row."""
        return self.block_tables[row * self.num_columns : (row + 1) * self.num_columns]


class AttentionBackend(Protocol):
    """Paged attention over a `KVPool`."""

    @property
    def kv_cache_dtypes(self) -> tuple[str, ...]:
        """Values of `--kv-cache-dtype` whose pools it reads and writes."""
        ...

    @property
    def depends_on_width(self) -> bool:
        """Whether a recorded decode step depends on the width of its block tables.

        True: a step is recorded for each (rows, width). False: lengths are read from the
        device, and the width is always the longest context.
        """
        ...

    def schedule(self, buffers: DecodeBuffers, rows: HostRows, dtype: Any) -> None:
        """Get ready, on the host, for a padded step that is about to run or to be replayed.

        Called each time, before `prepare_decode` where that is called at all.
        """
        ...

    def prepare_decode(self, buffers: DecodeBuffers, dtype: Any) -> Any:
        """Build once what every layer of a padded decode step shares, from tensors alone.

        Recordable: no host sync, no shape that depends on a value.
        """
        ...

    def arena_bytes(self, rows: int, width: int) -> int:
        """Return what a recorded step of this shape needs beside its inputs and outputs."""
        ...

    def prepare(self, inputs: AttentionInputs, dtype: Any) -> Any:
        """Build once what every layer of the step shares (masks, gather indices)."""
        ...

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: tuple[Tensor, Tensor], prepared: Any
    ) -> Tensor:
        """Store this step's K and V, then attend over the pool.

        Args:
            q: [T, H, D], rotary already applied.
            k: [T, K, D].
            v: [T, K, D].
            kv: The layer's K and V, each as `KVPool` says; written in place.
            prepared: What `prepare` returned.

        Returns:
            [T, H, D], same dtype and device as `q`.
        """
        ...
