"""`DeterministicAttention`: attention whose sums do not depend on what else is in the step.

A token is attended for as if it were alone. For each KV head, its query heads meet the keys
a tile at a time, tiles begin at multiples of `KEY_TILE`, and what the tiles give is added in
their order. So every product has one shape, whether the token is a decode or lies in a chunk
of any length, and whoever else is there. A tile behind the token weighs exactly 0: adding it
changes no bit, so tokens of different contexts can be computed together.

All of it is float32, whatever the model's dtype. Takes the CPU's time, not memory: the more
so the longer the contexts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nanoserve.attention.backend import AttentionInputs, DecodeBuffers, HostRows
from nanoserve.attention.torch_backend import similar_lengths, store_kv
from nanoserve.plan.capture_cost import gathered_arena_bytes
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import ceil_div

KEY_TILE = 128  # keys of one product
QUERY_TILE = 64  # most tokens of a chunk computed together: beyond, keys behind them cost more


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens that are computed together: decodes, or a part of one chunk.

    Attributes:
        rows: Their rows in the step.
        block_tables: int [R, N] in whole key tiles; R is 1 where they share their keys.
        is_hidden: bool [tiles, 1, T, 1, KEY_TILE], keys that a token may not see.
    """

    rows: Tensor | slice
    block_tables: Tensor
    is_hidden: Tensor


@dataclass(frozen=True, slots=True)
class PreparedRuns:
    """What every layer of one step shares."""

    slot_mapping: Tensor
    fresh_blocks: Tensor | None
    runs: tuple[TokenRun, ...]


class DeterministicAttention:
    """Attention over a paged pool, with the same bits for a token in any company."""

    def __init__(self, spec: ModelSpec) -> None:
        self._num_heads = spec.num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._sliding_window = spec.sliding_window

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

    def prepare(self, inputs: AttentionInputs, dtype: torch.dtype) -> PreparedRuns:
        """Build the masks and gather indices that every layer of the step shares."""
        del dtype  # float32 inside, whatever the model's
        groups = similar_lengths(inputs.host_context_lens[: inputs.num_decodes])
        runs = [self._run_decodes(inputs, group) for group in groups]
        for request in range(inputs.num_decodes, len(inputs.query_lens)):
            runs.extend(self._run_chunk(inputs, request))
        fresh_blocks = inputs.fresh_blocks if inputs.fresh_blocks.numel() else None
        return PreparedRuns(inputs.slot_mapping, fresh_blocks, tuple(runs))

    def schedule(self, buffers: DecodeBuffers, rows: HostRows, dtype: torch.dtype) -> None:
        """Nothing to do: lengths are read from tensors as the step runs."""

    def prepare_decode(self, buffers: DecodeBuffers, dtype: torch.dtype) -> PreparedRuns:
        """Gather every row's whole table, and hide what lies past its context by a mask."""
        del dtype
        rows = slice(0, len(buffers.block_tables))
        run = self._run(rows, buffers.block_tables, buffers.context_lens - 1, buffers.block_size)
        return PreparedRuns(buffers.slot_mapping, buffers.fresh_blocks, (run,))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: tuple[Tensor, Tensor], prepared: PreparedRuns
    ) -> Tensor:
        """Store this step's K and V, then attend; shapes as `AttentionBackend.attend` says."""
        store_kv(kv, (k, v), prepared.slot_mapping, prepared.fresh_blocks)
        out = q.new_empty(q.shape)
        for run in prepared.runs:
            out[run.rows] = self._attend_run(q[run.rows], kv, run).to(q.dtype)
        return out

    def _run_decodes(self, inputs: AttentionInputs, group: list[int]) -> TokenRun:
        longest = max(inputs.host_context_lens[row] for row in group)
        rows = torch.tensor(group, device=inputs.block_tables.device)
        tables = inputs.block_tables[rows, : ceil_div(longest, inputs.block_size)]
        return self._run(rows, tables, inputs.context_lens[rows] - 1, inputs.block_size)

    def _run_chunk(self, inputs: AttentionInputs, request: int) -> list[TokenRun]:
        """Cut a chunk, so that no token meets many keys that lie behind it."""
        query_len = inputs.query_lens[request]
        first_row = sum(inputs.query_lens[:request])
        first_position = inputs.host_context_lens[request] - query_len
        runs = []
        for start in range(0, query_len, QUERY_TILE):
            end = min(start + QUERY_TILE, query_len)
            positions = torch.arange(
                first_position + start, first_position + end, device=inputs.block_tables.device
            )
            num_blocks = ceil_div(first_position + end, inputs.block_size)
            table = inputs.block_tables[request : request + 1, :num_blocks]
            rows = slice(first_row + start, first_row + end)
            runs.append(self._run(rows, table, positions, inputs.block_size))
        return runs

    def _run(
        self, rows: Tensor | slice, block_tables: Tensor, positions: Tensor, block_size: int
    ) -> TokenRun:
        num_blocks = block_tables.shape[1]
        num_tiles = ceil_div(num_blocks * block_size, KEY_TILE)
        columns = torch.arange(
            ceil_div(num_tiles * KEY_TILE, block_size), device=block_tables.device
        )
        tables = block_tables[:, columns.clamp(max=num_blocks - 1)]  # the last block, over again
        keys = torch.arange(num_tiles * KEY_TILE, device=block_tables.device)
        is_hidden = keys > positions[:, None]
        if self._sliding_window is not None:
            is_hidden |= keys <= positions[:, None] - self._sliding_window
        is_hidden = is_hidden.view(1, len(positions), num_tiles, 1, KEY_TILE)
        return TokenRun(rows, tables, is_hidden.permute(2, 0, 1, 3, 4))

    def _attend_run(self, q: Tensor, kv: tuple[Tensor, Tensor], run: TokenRun) -> Tensor:
        """[T, H, D] to the same in float32; within, tensors are [K, T, H / K, ...]."""
        keys, values = (self._gather(pool, run.block_tables, len(q)) for pool in kv)
        grouped = q.float().view(len(q), self._num_kv_heads, -1, self._head_dim).transpose(0, 1)
        grouped = grouped * self._head_dim**-0.5
        tiles = [slice(start, start + KEY_TILE) for start in range(0, keys.shape[2], KEY_TILE)]
        scores = torch.stack([_multiply(grouped, keys[:, :, tile].mT) for tile in tiles])
        scores.masked_fill_(run.is_hidden, float("-inf"))
        weights = scores.sub_(scores.amax(-1, keepdim=True).amax(0)).exp_()
        totals = weights.sum(-1, keepdim=True)
        total, attended = torch.zeros_like(totals[0]), torch.zeros_like(grouped)
        for index, tile in enumerate(tiles):  # one after the other: their order is the sum's
            total += totals[index]
            attended += _multiply(weights[index], values[:, :, tile])
        return (attended / total).transpose(0, 1).reshape(q.shape)

    def _gather(self, pool: Tensor, block_tables: Tensor, num_tokens: int) -> Tensor:
        """Return the K or V of each token's context, [K, T, L, D] in float32."""
        blocks = pool.flatten(1).index_select(0, block_tables.reshape(-1)).float()
        shape = (len(block_tables), -1, self._num_kv_heads, self._head_dim)
        return blocks.view(shape).permute(2, 0, 1, 3).expand(-1, num_tokens, -1, -1)


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """Multiply [K, T, M, I] by [K, T, I, N], one KV head after the other.

    In one product, what the tokens of a chunk share would be copied for each of them.
    """
    return torch.stack([torch.bmm(*head) for head in zip(left, right, strict=True)])
