"""How many KV blocks there are, and whether one request fits in them.

Pure arithmetic on ints: bytes in, blocks out. Knows nothing of drivers or tensors; who
asks the device for its free bytes is `runner.device_memory`.
"""

from dataclasses import dataclass
from typing import Literal

from nanoserve.errors import DoesNotFitError, OptionError
from nanoserve.options import MIN_MODEL_LEN, MemoryPolicy
from nanoserve.plan.kv_layout import CacheFormat, full_bytes_per_token
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.plan.pool_room import PoolRoom, reserve_bytes
from nanoserve.spec.kv_format import pool_format
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.spec_shape import shape_of_spec
from nanoserve.units import ceil_div

PoolBound = Literal["pool", "slots"]


def kv_bytes_per_token(spec: ModelSpec, itemsize: int, kv_cache_dtype: str = "auto") -> int:
    """Return the bytes of one token's K and V over all layers, as our engine keeps them.

    All tokens in every layer, windows included. The multiplier is KV heads, not query heads.

    Args:
        spec: Shape of the model.
        itemsize: Bytes of a value in the compute dtype.
        kv_cache_dtype: How K and V are stored, scales included.

    Example: Llama 3.1 8B needs 131,072 bytes in bf16 (32 layers, 8 KV heads of 128), 67,584
        as int8 (128 + 4 for each head) and 65,536 as fp8.
    """
    kv_format = pool_format(kv_cache_dtype, itemsize)
    return full_bytes_per_token(shape_of_spec(spec), CacheFormat(itemsize, kv_format=kv_format))


def kv_bytes_per_block(
    spec: ModelSpec, block_size: int, itemsize: int, kv_cache_dtype: str = "auto"
) -> int:
    """Return the bytes of one block of `block_size` tokens over all layers."""
    return block_size * kv_bytes_per_token(spec, itemsize, kv_cache_dtype)


def blocks_for_length(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold `num_tokens` tokens, the last one perhaps in part."""
    return ceil_div(num_tokens, block_size)


def kv_budget_bytes(
    reading: MemoryReading | None,
    utilization: float,
    activation_bytes: int,
    capture_bytes: int = 0,
    policy: MemoryPolicy = "device",
) -> int:
    """Return the bytes a device leaves for KV once the weights are resident.

    May be negative: beside other processes the `device` policy can keep back more than is
    free (see `reserve_bytes`).

    Args:
        reading: The device with the weights on it; None where there is none to divide.
        utilization: Share of the total to plan with, in (0, 1].
        activation_bytes: What the largest step wants for a moment.
        capture_bytes: What recorded steps are given first.
        policy: Whose promise the utilization is.

    Raises:
        OptionError: There is no device figure to divide.
    """
    if reading is None:
        message = (
            "--kv-pool fill divides the memory of a GPU, and there is none here: a share of a "
            "machine's memory is a promise no allocator keeps. Say how much with "
            "--kv-cache-bytes, e.g. --kv-cache-bytes 1GiB, or leave out --kv-pool."
        )
        raise OptionError(message)
    kept_back = reserve_bytes(reading, utilization, policy)
    return PoolRoom(reading, 0, kept_back, activation_bytes, capture_bytes).budget_bytes


def concurrency_at_max_len(num_blocks: int, blocks_per_request: int) -> int:
    """Return how many requests of the longest length fit at once, unclamped."""
    return num_blocks // blocks_per_request


def bound_by(concurrency: int, max_num_seqs: int) -> PoolBound:
    """Return what limits requests of the longest length: the pool, or the slots."""
    return "pool" if concurrency < max_num_seqs else "slots"


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """What the pool is for.

    Attributes:
        max_num_seqs: Requests that run at once.
        max_model_len: Longest request in tokens.
        block_size: Tokens per block.
        block_bytes: Bytes per block over all layers.
        num_sink_blocks: Blocks that padding rows write to and no request holds.
    """

    max_num_seqs: int
    max_model_len: int
    block_size: int
    block_bytes: int
    num_sink_blocks: int = 0

    @property
    def blocks_per_request(self) -> int:
        """Blocks of one request of `max_model_len` tokens."""
        return blocks_for_length(self.max_model_len, self.block_size)

    @property
    def num_blocks(self) -> int:
        """Blocks with which `max_num_seqs` requests of `max_model_len` never wait."""
        return self.max_num_seqs * self.blocks_per_request

    def blocks_in(self, num_bytes: int) -> int:
        """Return the whole blocks for requests in a pool of `num_bytes`, never negative."""
        return max(0, num_bytes // self.block_bytes - self.num_sink_blocks)

    def bytes_of(self, num_blocks: int) -> int:
        """Return the bytes of a pool of `num_blocks` for requests, sink blocks included."""
        return _pool_bytes(num_blocks, self.num_sink_blocks, self.block_bytes)


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
        reading: The device with the weights on it, planned or asked; None where no device
            was divided.
        reserve_bytes: What the utilization keeps back of the device; 0 where it has no say.
        activation_bytes: What the largest step wants for a moment.
        capture_bytes: What recorded steps were given before the pool took the rest.
    """

    num_blocks: int
    block_bytes: int
    block_size: int
    concurrency_at_max_len: int
    bound_by: PoolBound
    sized_by: str
    num_sink_blocks: int = 0
    reading: MemoryReading | None = None
    reserve_bytes: int = 0
    activation_bytes: int = 0
    capture_bytes: int = 0

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool, sink blocks included."""
        return _pool_bytes(self.num_blocks, self.num_sink_blocks, self.block_bytes)

    @property
    def num_tokens(self) -> int:
        """Tokens that requests can hold."""
        return self.num_blocks * self.block_size

    @property
    def total_bytes(self) -> int | None:
        """All bytes of the device."""
        return None if self.reading is None else self.reading.total_bytes

    @property
    def free_after_load(self) -> int | None:
        """Bytes that were free once the weights were resident."""
        return None if self.reading is None else self.reading.free_bytes

    @property
    def other_processes_bytes(self) -> int | None:
        """Bytes of the device that other processes held."""
        return None if self.reading is None else self.reading.other_processes_bytes


def plan_kv_pool(
    demand: PoolDemand, num_blocks: int, sized_by: str, room: PoolRoom | None = None
) -> KVPoolPlan:
    """Make the plan of a pool of `num_blocks`, if one request of the longest length fits.

    Args:
        demand: What the pool is for.
        num_blocks: Blocks for requests, sink blocks apart.
        sized_by: What set the number.
        room: The device it lies on; None where none was divided.

    Raises:
        DoesNotFitError: It does not; names the longest length that would.
    """
    num_blocks = max(num_blocks, 0)
    if num_blocks < demand.blocks_per_request:
        raise _under_one_request(demand, num_blocks, sized_by, room)
    concurrency = concurrency_at_max_len(num_blocks, demand.blocks_per_request)
    return KVPoolPlan(
        num_blocks=num_blocks,
        block_bytes=demand.block_bytes,
        block_size=demand.block_size,
        concurrency_at_max_len=concurrency,
        bound_by=bound_by(concurrency, demand.max_num_seqs),
        sized_by=sized_by,
        num_sink_blocks=demand.num_sink_blocks,
        reading=room.reading if room else None,
        reserve_bytes=room.reserve_bytes if room else 0,
        activation_bytes=room.activation_bytes if room else 0,
        capture_bytes=room.capture_bytes if room else 0,
    )


def _under_one_request(
    demand: PoolDemand, num_blocks: int, sized_by: str, room: PoolRoom | None
) -> DoesNotFitError:
    longest = num_blocks * demand.block_size
    what = (
        f"The KV pool of {num_blocks:,} blocks ({longest:,} tokens) cannot hold one "
        f"request of {demand.max_model_len:,} tokens."
    )
    if room is not None and sized_by == "fill":
        what = f"{what} {room.describe()}"
    return DoesNotFitError(
        what,
        demand.bytes_of(demand.blocks_per_request),
        demand.bytes_of(num_blocks) if num_blocks else 0,
        (f"--max-model-len {longest}",) if longest >= MIN_MODEL_LEN else (),
        room.divide(demand.bytes_of(num_blocks) if num_blocks else 0) if room else None,
    )


def _pool_bytes(num_blocks: int, num_sink_blocks: int, block_bytes: int) -> int:
    return (num_blocks + num_sink_blocks) * block_bytes
