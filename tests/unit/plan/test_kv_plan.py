"""Blocks, budgets and pools, held against worked tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoserve.errors import DoesNotFitError
from nanoserve.plan.activation_plan import StepShape, plan_activations
from nanoserve.plan.kv_plan import (
    PoolDemand,
    blocks_for_length,
    kv_budget_bytes,
    kv_bytes_per_block,
    kv_bytes_per_token,
    plan_kv_pool,
)
from nanoserve.spec.model_spec import ModelSpec

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "kv_pool_llama32_1b.json").read_text()
)
LLAMA_32_1B = ModelSpec(
    architecture="llama",
    num_layers=16,
    hidden_size=2048,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    intermediate_size=8192,
    vocab_size=128256,
    max_position_embeddings=131072,
    tie_word_embeddings=True,
)
BF16 = 2  # bytes


def demand(max_num_seqs: int, max_model_len: int) -> PoolDemand:
    block_bytes = kv_bytes_per_block(LLAMA_32_1B, 16, BF16)
    return PoolDemand(max_num_seqs, max_model_len, 16, block_bytes)


def test_block_bytes_count_kv_heads() -> None:
    """A block multiplies KV heads; with query heads it would be four times as big."""
    block_bytes = kv_bytes_per_block(LLAMA_32_1B, GOLDEN["block_size"], BF16)

    assert block_bytes == GOLDEN["block_bytes"]
    assert block_bytes * 4 == GOLDEN["block_bytes_if_query_heads_were_used"]


def test_token_bytes_of_llama_31_8b() -> None:
    """Llama 3.1 8B needs 131,072 bytes of KV per token in bf16."""
    spec = ModelSpec("llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072)

    assert kv_bytes_per_token(spec, BF16) == 131_072


def test_one_long_request() -> None:
    """A request of 131,072 tokens takes 8,192 blocks and 4 GiB."""
    blocks = blocks_for_length(131072, 16)

    assert blocks == GOLDEN["one_request_at_131072"]["blocks"]
    assert blocks * GOLDEN["block_bytes"] == GOLDEN["one_request_at_131072"]["bytes"]


@pytest.mark.parametrize(
    "case",
    GOLDEN["cases"],
    ids=lambda c: f"{c['max_batch_size']}x{c['max_model_len']}-last{c['last_row_logits']:d}",
)
def test_pool_reproduces_golden_table(case: dict[str, Any]) -> None:
    """Activations, blocks, concurrency and what bound it equal the table in every cell."""
    rows, length = case["max_batch_size"], case["max_model_len"]
    shape = StepShape(
        num_tokens=rows * length,
        num_logit_rows=rows if case["last_row_logits"] else rows * length,
        num_scores=rows * length * length,
    )
    activations = plan_activations(LLAMA_32_1B, shape, BF16, logits_itemsize=BF16)
    free_after_load = GOLDEN["total_bytes"] - GOLDEN["context_bytes"] - GOLDEN["weight_bytes"]
    budget = kv_budget_bytes(
        free_after_load,
        GOLDEN["total_bytes"],
        GOLDEN["gpu_memory_utilization"],
        activations.sum_bytes,
    )
    num_blocks = max(0, budget // GOLDEN["block_bytes"])

    assert activations.logits_bytes == case["logits_bytes"]
    assert activations.scores_bytes == case["scores_bytes"]
    assert activations.mlp_bytes == case["swiglu_bytes"]
    assert activations.sum_bytes == case["activation_bytes"]
    assert num_blocks == case["num_blocks"]
    if "outcome" in case:
        with pytest.raises(DoesNotFitError):
            plan_kv_pool(demand(rows, length), num_blocks, "fill")
        return
    pool = plan_kv_pool(demand(rows, length), num_blocks, "fill")
    assert pool.concurrency_at_max_len == case["concurrency_at_max_len"]
    assert pool.bound_by == case["bound_by"]


def test_peak_is_the_largest_phase() -> None:
    """Phases never live at once: the peak is the largest of them, not their sum."""
    plan = plan_activations(LLAMA_32_1B, StepShape(512, 8, 0), BF16, 4)

    assert plan.peak_bytes == plan.mlp_bytes
    assert plan.sum_bytes == plan.mlp_bytes + plan.logits_bytes


def test_other_tenants_come_out_of_the_budget() -> None:
    """Utilization is of the whole device, so a budget may be negative beside others."""
    gib = 2**30
    budget = kv_budget_bytes(int(0.43 * gib), int(11.63 * gib), 0.92, 0)

    assert budget / gib == pytest.approx(GOLDEN["co_tenant"]["device_policy_gib"], abs=1e-3)


def test_pool_under_one_request_is_refused() -> None:
    """A pool that holds no request of the longest length names the longest it could hold."""
    with pytest.raises(DoesNotFitError, match="--max-model-len 160") as caught:
        plan_kv_pool(demand(8, 2048), 10, "num_blocks")

    assert caught.value.need_bytes == 128 * GOLDEN["block_bytes"]
    assert caught.value.have_bytes == 10 * GOLDEN["block_bytes"]


def test_negative_budget_is_refused_with_nothing_to_have() -> None:
    """A negative number of blocks counts as none and offers no length."""
    with pytest.raises(DoesNotFitError) as caught:
        plan_kv_pool(demand(8, 2048), -3, "fill")

    assert caught.value.have_bytes == 0
    assert caught.value.advice == ()


def test_demand_is_slots_times_the_longest_request() -> None:
    """Demand counts whole blocks per request."""
    wanted = demand(8, 2049)
    pool = plan_kv_pool(wanted, wanted.num_blocks, "demand")

    assert wanted.num_blocks == 8 * 129
    assert pool.concurrency_at_max_len == 8
    assert pool.bound_by == "slots"
    assert pool.num_tokens == 8 * 129 * 16
    assert pool.pool_bytes == 8 * 129 * GOLDEN["block_bytes"]
