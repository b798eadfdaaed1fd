"""The protocol every attention implementation follows, and what it is handed.

A backend knows the paged pool's layout and nothing of models or schedules.
"""

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


class AttentionBackend(Protocol):
    """Paged attention over a pool of `[num_blocks, block_size, K, D]` per layer."""

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
            kv: The layer's K and V, each [N, S, K, D]; written in place.
            prepared: What `prepare` returned.

        Returns:
            [T, H, D], same dtype and device as `q`.
        """
        ...
