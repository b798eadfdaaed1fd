"""Blocks, budgets and pools. The worked table is in tests/golden/test_kv_pool_table.py."""

import pytest

from nanoserve.errors import DoesNotFitError, OptionError
from nanoserve.plan.kv_plan import (
    PoolDemand,
    blocks_for_length,
    bound_by,
    concurrency_at_max_len,
    kv_budget_bytes,
    kv_bytes_per_block,
    kv_bytes_per_token,
    plan_kv_pool,
)
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.plan.pool_room import PoolRoom
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import GIB, KIB, MIB
from tests.plan_cases import LLAMA_32_1B

BF16 = 2  # bytes
BLOCK_BYTES = 512 * KIB  # Llama-3.2-1B: 2 * 16 layers * 8 KV heads * 64 * 2 bytes * 16 tokens


def demand(max_num_seqs: int, max_model_len: int, num_sink_blocks: int = 0) -> PoolDemand:
    return PoolDemand(max_num_seqs, max_model_len, 16, BLOCK_BYTES, num_sink_blocks)


def test_block_bytes_count_kv_heads() -> None:
    """A block multiplies KV heads; with query heads it would be four times as big."""
    assert kv_bytes_per_block(LLAMA_32_1B, 16, BF16) == BLOCK_BYTES
    assert GIB // BLOCK_BYTES == 2048


def test_token_bytes_of_llama_31_8b() -> None:
    """Llama 3.1 8B needs 131,072 bytes of KV per token in bf16."""
    spec = ModelSpec("llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072)

    assert kv_bytes_per_token(spec, BF16) == 131_072


@pytest.mark.parametrize(
    ("kv_cache_dtype", "head_bytes"), [("auto", 64 * BF16), ("int8", 64 + 4), ("fp8", 64)]
)
def test_a_block_counts_how_k_and_v_are_stored(kv_cache_dtype: str, head_bytes: int) -> None:
    """int8 has a float32 scale for each head of each token; fp8 has none."""
    block_bytes = kv_bytes_per_block(LLAMA_32_1B, 16, BF16, kv_cache_dtype)

    assert block_bytes == 16 * 2 * 16 * 8 * head_bytes


@pytest.mark.parametrize(("length", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (2048, 128)])
def test_a_length_takes_whole_blocks(length: int, blocks: int) -> None:
    """The last block may be held in part."""
    assert blocks_for_length(length, 16) == blocks


def test_device_policy_takes_everything_off() -> None:
    """Reserve, activations and captured steps come out of what is free."""
    reading = MemoryReading(total_bytes=1000, free_bytes=600, own_bytes=300)

    assert kv_budget_bytes(reading, 0.9, activation_bytes=50, capture_bytes=20) == 430


def test_process_policy_counts_this_process_alone() -> None:
    """The process may grow to its share of the total, and to 0.95 of what is free."""
    roomy = MemoryReading(total_bytes=1000, free_bytes=900, own_bytes=100)
    crowded = MemoryReading(total_bytes=1000, free_bytes=400, own_bytes=100)

    assert kv_budget_bytes(roomy, 0.5, 50, policy="process") == 500 - 100 - 50
    assert kv_budget_bytes(crowded, 0.9, 50, policy="process") == 380 - 50


def test_a_budget_may_be_negative() -> None:
    """Beside others the device policy can keep back more than is free."""
    assert kv_budget_bytes(MemoryReading(1000, 50), 0.9, 0) == -50


def test_without_a_device_figure_bytes_must_be_said() -> None:
    """A share of a machine's memory is no promise: the message names the flag."""
    with pytest.raises(OptionError, match="--kv-cache-bytes"):
        kv_budget_bytes(None, 0.9, 0)


@pytest.mark.parametrize(("slots", "bound"), [(7, "slots"), (8, "slots"), (9, "pool")])
def test_pool_binds_exactly_under_the_slots(slots: int, bound: str) -> None:
    """The pool is what limits only where fewer than the slots fit; concurrency is unclamped."""
    pool = plan_kv_pool(demand(slots, 2048), 8 * 128, "fill")

    assert pool.concurrency_at_max_len == concurrency_at_max_len(8 * 128, 128) == 8
    assert pool.bound_by == bound_by(8, slots) == bound


def test_pool_under_one_request_is_refused() -> None:
    """A pool that holds no request of the longest length names the longest it could hold."""
    with pytest.raises(DoesNotFitError, match="--max-model-len 160") as caught:
        plan_kv_pool(demand(8, 2048), 10, "num_blocks")

    assert caught.value.need_bytes == 128 * BLOCK_BYTES
    assert caught.value.have_bytes == 10 * BLOCK_BYTES
    assert caught.value.budget is None


def test_refused_filling_pool_says_what_took_the_device() -> None:
    """Where a device was divided, its parts are in the message and in the error."""
    reading = MemoryReading(12 * GIB, GIB, 2 * GIB)
    room = PoolRoom(reading, 2 * GIB, GIB, 16 * MIB, 0)
    with pytest.raises(DoesNotFitError, match=r"9\.00 GiB is held by other processes") as caught:
        plan_kv_pool(demand(8, 2048), 0, "fill", room)

    assert caught.value.have_bytes == 0
    assert caught.value.advice == ()
    assert caught.value.budget is not None
    assert caught.value.budget.part_bytes("unassigned") == -16 * MIB


def test_demand_is_slots_times_the_longest_request() -> None:
    """Demand counts whole blocks per request."""
    wanted = demand(8, 2049)
    pool = plan_kv_pool(wanted, wanted.num_blocks, "demand")

    assert wanted.num_blocks == 8 * 129
    assert pool.concurrency_at_max_len == 8
    assert pool.num_tokens == 8 * 129 * 16
    assert pool.pool_bytes == 8 * 129 * BLOCK_BYTES


def test_sink_block_is_beside_the_requests_blocks() -> None:
    """Padding rows' block costs bytes and holds no request."""
    wanted = demand(1, 2048, num_sink_blocks=1)
    pool = plan_kv_pool(wanted, wanted.blocks_in(129 * BLOCK_BYTES), "kv_cache_bytes")

    assert pool.num_blocks == 128
    assert pool.pool_bytes == wanted.bytes_of(128) == 129 * BLOCK_BYTES
    assert wanted.blocks_in(0) == 0


def test_pool_carries_the_device_it_lies_on() -> None:
    """The plan answers for total, free and other processes' bytes; None where none was asked."""
    room = PoolRoom(MemoryReading(GIB, 600 * MIB, 100 * MIB), 100 * MIB, 3, 2, 1)
    pool = plan_kv_pool(demand(1, 16), 4, "fill", room)
    alone = plan_kv_pool(demand(1, 16), 4, "fill")

    assert (pool.total_bytes, pool.free_after_load) == (GIB, 600 * MIB)
    assert pool.other_processes_bytes == 324 * MIB
    assert (pool.reserve_bytes, pool.activation_bytes, pool.capture_bytes) == (3, 2, 1)
    assert (alone.total_bytes, alone.free_after_load, alone.other_processes_bytes) == (None,) * 3


def test_a_length_that_nobody_could_use_is_not_advised() -> None:
    """One token is a prompt without an answer."""
    demand = PoolDemand(max_num_seqs=1, max_model_len=8, block_size=1, block_bytes=2)

    for num_blocks, advice in ((1, ()), (2, ("--max-model-len 2",))):
        with pytest.raises(DoesNotFitError) as refusal:
            plan_kv_pool(demand, num_blocks, "num_blocks")
        assert refusal.value.advice == advice
