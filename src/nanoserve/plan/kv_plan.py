"""How many KV blocks there are, and whether one request fits in them.

Pure arithmetic on ints: bytes in, blocks out. Knows nothing of drivers or tensors; who
asks the device for its free bytes is `runner.device_memory`.
"""

from dataclasses import dataclass
from typing import Literal

from nanoserve.errors import DoesNotFitError
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import ceil_div


def kv_bytes_per_token(spec: ModelSpec, itemsize: int) -> int:
    """Return the bytes of one token's K and V over all layers: `2 * L * K * D * itemsize`.

    The multiplier is KV heads, not query heads.

    Example: Llama 3.1 8B in bf16 needs 131,072 bytes (32 layers, 8 KV heads of 128).
    """
    return 2 * spec.num_layers * spec.kv_size * itemsize


def kv_bytes_per_block(spec: ModelSpec, block_size: int, itemsize: int) -> int:
    """Return the bytes of one block of `block_size` tokens over all layers."""
    return block_size * kv_bytes_per_token(spec, itemsize)


def blocks_for_length(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold `num_tokens` tokens, the last one perhaps in part."""
    return ceil_div(num_tokens, block_size)


def kv_budget_bytes(
    free_after_load: int, total_bytes: int, utilization: float, activation_bytes: int
) -> int:
    """Return the bytes a device leaves for KV once the weights are resident.

    `utilization` multiplies the total: it is a promise about the whole device, so what
    other processes hold comes out of the budget. May be negative.

    Args:
        free_after_load: Free bytes as the driver tells them after loading.
        total_bytes: All bytes of the device.
        utilization: Share of the total to plan with, in (0, 1].
        activation_bytes: What the largest step wants for a moment.
    """
    reserve_bytes = total_bytes - int(utilization * total_bytes)
    return free_after_load - reserve_bytes - activation_bytes


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """What the pool is for.

    Attributes:
        max_num_seqs: Requests that run at once.
        max_model_len: Longest request in tokens.
        block_size: Tokens per block.
        block_bytes: Bytes per block over all layers.
    """

    max_num_seqs: int
    max_model_len: int
    block_size: int
    block_bytes: int

    @property
    def blocks_per_request(self) -> int:
        """Blocks of one request of `max_model_len` tokens."""
        return blocks_for_length(self.max_model_len, self.block_size)

    @property
    def num_blocks(self) -> int:
        """Blocks with which `max_num_seqs` requests of `max_model_len` never wait."""
        return self.max_num_seqs * self.blocks_per_request


@dataclass(frozen=True, slots=True)
class KVPoolPlan:
    """A pool that holds at least one request of the longest length.

    Attributes:
        num_blocks: Blocks that requests may hold.
        block_bytes: Bytes of one block.
        block_size: Tokens of one block.
        concurrency_at_max_len: Requests of `max_model_len` that fit at once, unclamped.
        bound_by: `pool` exactly when fewer than `max_num_seqs` fit, else `slots`.
        sized_by: What set `num_blocks`: `demand`, `fill`, `num_blocks` or `kv_cache_bytes`.
        num_sink_blocks: Blocks beside them that padding rows write to: 1 where steps are
            padded, else 0.
        reading: The device as it was when the pool was sized; None where it was not asked.
        reserve_bytes: What the utilization keeps back of the device; 0 where it has no say.
        activation_bytes: What the largest step wants for a moment.
        capture_bytes: What recorded steps were given before the pool took the rest.
    """

    num_blocks: int
    block_bytes: int
    block_size: int
    concurrency_at_max_len: int
    bound_by: Literal["pool", "slots"]
    sized_by: str
    num_sink_blocks: int = 0
    reading: MemoryReading | None = None
    reserve_bytes: int = 0
    activation_bytes: int = 0
    capture_bytes: int = 0

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool, sink blocks included."""
        return (self.num_blocks + self.num_sink_blocks) * self.block_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens the pool holds."""
        return self.num_blocks * self.block_size


def plan_kv_pool(demand: PoolDemand, num_blocks: int, sized_by: str) -> KVPoolPlan:
    """Make the plan of a pool of `num_blocks`, if one request of the longest length fits.

    Raises:
        DoesNotFitError: It does not; names the longest length that would.
    """
    if num_blocks < demand.blocks_per_request:
        longest = max(num_blocks, 0) * demand.block_size
        what = (
            f"The KV pool of {max(num_blocks, 0):,} blocks ({longest:,} tokens) cannot hold one "
            f"request of {demand.max_model_len:,} tokens."
        )
        advice = (f"--max-model-len {longest}",) if longest else ()
        raise DoesNotFitError(
            what,
            demand.blocks_per_request * demand.block_bytes,
            max(num_blocks, 0) * demand.block_bytes,
            advice,
        )
    concurrency = num_blocks // demand.blocks_per_request
    return KVPoolPlan(
        num_blocks=num_blocks,
        block_bytes=demand.block_bytes,
        block_size=demand.block_size,
        concurrency_at_max_len=concurrency,
        bound_by="pool" if concurrency < demand.max_num_seqs else "slots",
        sized_by=sized_by,
    )
