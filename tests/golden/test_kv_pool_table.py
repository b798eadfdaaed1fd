"""The worked table of pools for Llama-3.2-1B, computed again cell by cell."""

import json
from pathlib import Path
from typing import Any

from nanoserve.errors import DoesNotFitError
from nanoserve.options import MemoryPolicy
from nanoserve.plan.activation_plan import StepShape, estimate_activation_bytes
from nanoserve.plan.kv_plan import (
    PoolDemand,
    blocks_for_length,
    concurrency_at_max_len,
    kv_budget_bytes,
    kv_bytes_per_block,
    plan_kv_pool,
)
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.plan.weight_plan import plan_weights
from nanoserve.spec.param_count import count_parameters
from nanoserve.units import GIB
from tests.plan_cases import LLAMA_32_1B as SPEC
from tests.plan_cases import gib

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "kv_pool_llama32_1b.json").read_text())
GIVEN = ("about", "dtype", "block_size", "total_bytes", "gpu_memory_utilization", "context_bytes")
BF16 = 2  # bytes
POLICIES: tuple[MemoryPolicy, ...] = ("device", "process")


def test_every_cell_is_reproduced() -> None:
    """Each figure of the table, and no other, comes out of the formulas."""
    block_size = GOLDEN["block_size"]
    block_bytes = kv_bytes_per_block(SPEC, block_size, BF16)
    weight_bytes = plan_weights(SPEC, "bfloat16", "none", is_packed=False).num_bytes
    embedding_bytes = count_parameters(SPEC).embedding * BF16
    long_blocks = blocks_for_length(SPEC.max_position_embeddings, block_size)
    computed = {
        "parameters": count_parameters(SPEC).total,
        "weight_bytes": weight_bytes,
        "block_bytes": block_bytes,
        "block_bytes_if_query_heads_were_used": block_bytes * SPEC.num_heads // SPEC.num_kv_heads,
        "tied_embedding_bytes": embedding_bytes,
        "tied_embedding_blocks": embedding_bytes // block_bytes,
        "tied_embedding_tokens": embedding_bytes // block_bytes * block_size,
        "weights_counted_twice_blocks": weight_bytes // block_bytes,
        "one_request_at_131072": {"blocks": long_blocks, "bytes": long_blocks * block_bytes},
        "cases": [case_of(case, block_bytes, weight_bytes) for case in GOLDEN["cases"]],
        "co_tenant": co_tenant_of(GOLDEN["co_tenant"]),
        "model": {
            "name": GOLDEN["model"]["name"],
            "num_hidden_layers": SPEC.num_layers,
            "hidden_size": SPEC.hidden_size,
            "num_attention_heads": SPEC.num_heads,
            "num_key_value_heads": SPEC.num_kv_heads,
            "head_dim": SPEC.head_dim,
            "intermediate_size": SPEC.intermediate_size,
            "vocab_size": SPEC.vocab_size,
            "max_position_embeddings": SPEC.max_position_embeddings,
            "tie_word_embeddings": SPEC.tie_word_embeddings,
        },
    }

    assert computed == {key: value for key, value in GOLDEN.items() if key not in GIVEN}


def case_of(case: dict[str, Any], block_bytes: int, weight_bytes: int) -> dict[str, Any]:
    """Compute one row of the table from the three inputs it states."""
    rows, length, is_last_row = (
        case[key] for key in ("max_batch_size", "max_model_len", "last_row_logits")
    )
    shape = StepShape(  # unchunked prefill, scores materialised
        num_tokens=rows * length,
        num_logit_rows=rows if is_last_row else rows * length,
        num_scores=rows * length * length,
    )
    activations = estimate_activation_bytes(SPEC, shape, BF16, logits_itemsize=BF16)
    total_bytes = GOLDEN["total_bytes"]
    free_bytes = total_bytes - GOLDEN["context_bytes"] - weight_bytes
    budget_bytes = kv_budget_bytes(
        MemoryReading(total_bytes, free_bytes, weight_bytes, GOLDEN["context_bytes"]),
        GOLDEN["gpu_memory_utilization"],
        activations.sum_bytes,
    )
    demand = PoolDemand(rows, length, GOLDEN["block_size"], block_bytes)
    num_blocks = demand.blocks_in(budget_bytes)
    computed = {
        "max_batch_size": rows,
        "max_model_len": length,
        "last_row_logits": is_last_row,
        "logits_bytes": activations.logits_bytes,
        "scores_bytes": activations.scores_bytes,
        "swiglu_bytes": activations.mlp_bytes,
        "activation_bytes": activations.sum_bytes,
        "num_blocks": num_blocks,
        "concurrency_at_max_len": concurrency_at_max_len(num_blocks, demand.blocks_per_request),
    }
    try:
        pool = plan_kv_pool(demand, num_blocks, "fill")
    except DoesNotFitError:
        return computed | {"outcome": "refused: pool under one request"}
    assert pool.concurrency_at_max_len == computed["concurrency_at_max_len"]
    return computed | {"bound_by": pool.bound_by}


def co_tenant_of(case: dict[str, Any]) -> dict[str, Any]:
    """Compute both policies, beside other processes and after some of them leave."""
    total_bytes, own_bytes = gib(case["total_gib"]), gib(case["own_gib"])
    free_bytes = total_bytes - gib(case["used_gib"])
    context_bytes = gib(case["used_gib"] - case["own_gib"] - case["others_gib"])
    beside = MemoryReading(total_bytes, free_bytes, own_bytes, context_bytes)
    after = MemoryReading(total_bytes, free_bytes + gib(5.8), own_bytes, context_bytes)

    def policies(reading: MemoryReading) -> dict[str, float]:
        return {f"{policy}_policy_gib": budget_gib(reading, policy) for policy in POLICIES}

    def budget_gib(reading: MemoryReading, policy: MemoryPolicy) -> float:
        budget = kv_budget_bytes(reading, case["utilization"], 0, policy=policy)
        return round(budget / GIB, 4)

    return {
        "about": case["about"],
        "total_gib": round(beside.total_bytes / GIB, 4),
        "used_gib": round((beside.total_bytes - beside.free_bytes) / GIB, 4),
        "own_gib": round(beside.own_bytes / GIB, 4),
        "others_gib": round(beside.other_processes_bytes / GIB, 4),
        "utilization": case["utilization"],
        **policies(beside),
        "after_5_8_gib_leave": policies(after),
    }
