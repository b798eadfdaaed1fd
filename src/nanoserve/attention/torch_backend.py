"""`TorchAttention`: paged attention out of gathers and `scaled_dot_product_attention`.

Owns the reading and writing of the pool on any device torch runs on. Knows nothing of
rotary embeddings or schedules. Decodes of similar length are one batched call; each
prefill chunk is one.

Every slot that is gathered belongs to the request that reads it (tables are padded with
the request's own block) and holds a finite number (a block is zeroed when a request
begins it), so a masked slot weighs exactly 0 whatever its former owner left there.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoserve.attention.backend import AttentionInputs, DecodeBuffers, HostRows
from nanoserve.plan.capture_cost import gathered_arena_bytes
from nanoserve.units import ceil_div

CHEAP_PADDING_TOKENS = 256  # contexts up to here are padded to one another, whatever the waste


@dataclass(frozen=True, slots=True)
class DecodeGather:
    """What `R` decodes read that are computed together.

    Attributes:
        rows: int64 [R], the decodes' rows in the step; a slice where they lie together.
        block_ids: int32 [R * N], blocks of every request up to the longest context.
        mask: [R, 1, 1, N * S], 0 where a request may look and -inf elsewhere.
    """

    rows: Tensor | slice
    block_ids: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class ChunkGather:
    """What one prefill chunk reads.

    Attributes:
        rows: The chunk's rows in the step.
        block_ids: int32 [N], the request's blocks; None if the chunk is its whole context.
        context_len: Tokens in those blocks.
        mask: [query_len, context_len] additive; None where plain causal order says it all.
    """

    rows: slice
    block_ids: Tensor | None
    context_len: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """What every layer of one step shares."""

    slot_mapping: Tensor
    fresh_blocks: Tensor | None
    decodes: tuple[DecodeGather, ...]
    chunks: tuple[ChunkGather, ...]


class TorchAttention:
    """Attention over a paged pool in plain torch, on CPU or CUDA."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, head_dim: int, sliding_window: int | None = None
    ) -> None:
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._sliding_window = sliding_window

    def prepare(self, inputs: AttentionInputs, dtype: torch.dtype) -> PreparedStep:
        """Build the masks and gather indices that every layer of the step shares."""
        groups = similar_lengths(inputs.host_context_lens[: inputs.num_decodes])
        return PreparedStep(
            slot_mapping=inputs.slot_mapping,
            fresh_blocks=inputs.fresh_blocks if inputs.fresh_blocks.numel() else None,
            decodes=tuple(self._prepare_decodes(inputs, rows, dtype) for rows in groups),
            chunks=tuple(self._prepare_chunks(inputs, dtype)),
        )

    @property
    def kv_cache_dtypes(self) -> tuple[str, ...]:
        """The compute dtype alone: it reads K and V as they are."""
        return ("auto",)

    @property
    def depends_on_width(self) -> bool:
        """True: a recorded step gathers whole block tables, however short the contexts."""
        return True

    def arena_bytes(self, rows: int, width: int) -> int:
        """Return what the layer at work takes: scores, copies of K and V, and the mask."""
        return gathered_arena_bytes(
            self._num_heads, self._num_kv_heads * self._head_dim, rows, width
        )

    def schedule(self, buffers: DecodeBuffers, rows: HostRows, dtype: torch.dtype) -> None:
        """Nothing to do: lengths are read from tensors as the step runs."""

    def prepare_decode(self, buffers: DecodeBuffers, dtype: torch.dtype) -> PreparedStep:
        """Gather every row's whole table, and hide what lies past its context by a mask."""
        num_rows, num_blocks = buffers.block_tables.shape
        keys = torch.arange(num_blocks * buffers.block_size, device=buffers.block_tables.device)
        mask = self._additive_mask(buffers.context_lens[:, None] - 1, keys, dtype)
        block_ids = buffers.block_tables.reshape(-1)
        gather = DecodeGather(slice(0, num_rows), block_ids, mask[:, None, None, :])
        return PreparedStep(buffers.slot_mapping, buffers.fresh_blocks, (gather,), ())

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: tuple[Tensor, Tensor], prepared: PreparedStep
    ) -> Tensor:
        """Store this step's K and V, then attend; shapes as `AttentionBackend.attend` says."""
        store_kv(kv, (k, v), prepared.slot_mapping, prepared.fresh_blocks)
        out = q.new_empty(q.shape)
        for gather in prepared.decodes:
            out[gather.rows] = self._attend_decodes(q[gather.rows], kv, gather)
        for chunk in prepared.chunks:
            out[chunk.rows] = self._attend_chunk(q, k, v, kv, chunk)
        return out

    def _prepare_decodes(
        self, inputs: AttentionInputs, group: list[int], dtype: torch.dtype
    ) -> DecodeGather:
        device = inputs.block_tables.device
        longest = max(inputs.host_context_lens[row] for row in group)
        num_blocks = ceil_div(longest, inputs.block_size)
        rows = torch.tensor(group, device=device)
        keys = torch.arange(num_blocks * inputs.block_size, device=device)
        mask = self._additive_mask(inputs.context_lens[rows, None] - 1, keys, dtype)
        block_ids = inputs.block_tables[rows, :num_blocks].reshape(-1)
        return DecodeGather(rows, block_ids, mask[:, None, None, :])

    def _prepare_chunks(self, inputs: AttentionInputs, dtype: torch.dtype) -> list[ChunkGather]:
        chunks = []
        start = inputs.num_decodes
        for request in range(inputs.num_decodes, len(inputs.query_lens)):
            query_len = inputs.query_lens[request]
            context_len = inputs.host_context_lens[request]
            rows = slice(start, start + query_len)
            start += query_len
            is_whole = query_len == context_len
            num_blocks = ceil_div(context_len, inputs.block_size)
            block_ids = None if is_whole else inputs.block_tables[request, :num_blocks]
            is_windowed = self._sliding_window is not None and context_len > self._sliding_window
            mask = None
            if is_windowed or not is_whole:
                keys = torch.arange(context_len, device=inputs.block_tables.device)
                mask = self._additive_mask(keys[-query_len:, None], keys, dtype)
            chunks.append(ChunkGather(rows, block_ids, context_len, mask))
        return chunks

    def _additive_mask(self, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
        """Return 0 where position `keys` is visible from `queries`, -inf elsewhere."""
        is_hidden = keys > queries
        if self._sliding_window is not None:
            is_hidden = is_hidden | (keys <= queries - self._sliding_window)
        mask = torch.zeros(is_hidden.shape, dtype=dtype, device=keys.device)
        return mask.masked_fill_(is_hidden, float("-inf"))

    def _attend_decodes(self, q: Tensor, kv: tuple[Tensor, Tensor], gather: DecodeGather) -> Tensor:
        """Attend with all decodes at once; the query heads of a KV head are its query rows."""
        num_decodes = q.shape[0]
        keys, values = (
            pool.flatten(1)
            .index_select(0, gather.block_ids)
            .view(num_decodes, -1, self._num_kv_heads, self._head_dim)
            .transpose(1, 2)
            for pool in kv
        )
        grouped = q.reshape(num_decodes, self._num_kv_heads, -1, self._head_dim)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=gather.mask)
        return out.reshape(num_decodes, self._num_heads, self._head_dim)

    def _attend_chunk(
        self, q: Tensor, k: Tensor, v: Tensor, kv: tuple[Tensor, Tensor], chunk: ChunkGather
    ) -> Tensor:
        """Attend with one chunk: over its own K and V, or over its blocks of the pool."""
        if chunk.block_ids is None:
            keys, values = k[chunk.rows], v[chunk.rows]
        else:
            keys, values = (
                pool.index_select(0, chunk.block_ids).flatten(0, 1)[: chunk.context_len]
                for pool in kv
            )
        out = F.scaled_dot_product_attention(
            q[chunk.rows].transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            enable_gqa=self._num_heads != self._num_kv_heads,
        )
        return out[0].transpose(0, 1)


def store_kv(
    kv: tuple[Tensor, Tensor],
    new_kv: tuple[Tensor, Tensor],
    slot_mapping: Tensor,
    fresh_blocks: Tensor | None,
) -> None:
    """Zero the blocks that the step begins, then write the K and V of its tokens.

    Args:
        kv: The layer's pool, K and V, each [N, S, K, D].
        new_kv: K and V of the step's tokens, each [T, K, D].
        slot_mapping: int64 [T].
        fresh_blocks: int64; None if there are none.
    """
    for pool, new in zip(kv, new_kv, strict=True):
        if fresh_blocks is not None:
            pool.index_fill_(0, fresh_blocks, 0.0)
        pool.view(-1, *new.shape[1:]).index_copy_(0, slot_mapping, new)


def similar_lengths(context_lens: tuple[int, ...]) -> list[list[int]]:
    """Split decodes so that none is padded to more than twice its length.

    A batch is as wide as its longest member: beside one request of 2,048 tokens, seven of
    128 would cost sixteen times their own K and V.
    """
    groups: list[list[int]] = []
    limit = 0
    for row in sorted(range(len(context_lens)), key=context_lens.__getitem__):
        if context_lens[row] > limit:
            groups.append([])
            limit = max(CHEAP_PADDING_TOKENS, 2 * context_lens[row])
        groups[-1].append(row)
    return groups
