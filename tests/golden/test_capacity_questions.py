"""Every cell of capacity_questions.json, within its tolerance; the formula is printed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_formulas import plan_formulas
from nanoserve.capacity.rank_weights import bytes_formula, group_params
from nanoserve.capacity.workload import parse_workload
from nanoserve.plan.formula import evaluate
from nanoserve.plan.kv_layout import CacheFormat, full_bytes_per_token, kv_request_bytes
from nanoserve.spec.gpu_spec import override_gpu
from nanoserve.spec.param_count import count_active_parameters, count_parameters
from nanoserve.spec.planned_model import PlannedModel
from nanoserve.spec.quant_spec import FULL_PRECISION, file_bits_format, find_weight_format
from nanoserve.spec.read_model import read_planned_model
from nanoserve.units import GIB
from tests.planner import planned, query

TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "capacity_questions.json").read_text())
MODELS = {
    "Llama-3-8B": "llama-3-8b",
    "Llama-2-7B": "llama-2-7b",
    "Llama-3-70B": "llama-3-70b",
}
ITEMSIZES = {"bfloat16": 2, "fp8": 1}
EIGHT_BITS = file_bits_format("8 bits", 8)  # every weight, as the table counts it
FOUR_BITS = file_bits_format("4 bits and scales", 36e9 * 8 / 70_553_706_496)


def show(plan: PlanAnswer, name: str) -> None:
    """Print a formula of a plan, for who reads the test's output."""
    for formula in plan_formulas(plan):
        if formula.name.startswith(name):
            print(f"{formula.name} = {formula.expression} = {formula.substituted}")
            assert evaluate(formula.substituted) == formula.value


@pytest.mark.parametrize("row", TABLE["kv_bytes_per_token"], ids=lambda row: f"{row['model']}")
def test_kv_bytes_per_token(row: dict[str, Any]) -> None:
    """Bytes of a token over all layers."""
    shape = read_planned_model(MODELS[row["model"]]).shape
    cache = CacheFormat(itemsize=ITEMSIZES[row["dtype"]])

    print(f"{row['layers']} * {row['kv_heads']} * (2 * {row['head_dim']}) * {cache.itemsize}")
    assert full_bytes_per_token(shape, cache) == row["bytes"]


def test_a_conversation() -> None:
    """4,096 tokens of Llama 3 8B are half a GiB."""
    shape = read_planned_model("llama-3-8b").shape

    expected = TABLE["conversation_4096_tokens_llama3_8b_bytes"]
    assert kv_request_bytes(shape, 4096, CacheFormat()) == expected


def test_parameters_of_llama_3_8b() -> None:
    """A layer's parameters, the share of its MLP, and the total that is quoted."""
    row = TABLE["parameters"]["llama3_8b"]
    shape = read_planned_model("llama-3-8b").shape
    layer = shape.layers[0].weights
    mlp = sum(weight.num_params for weight in layer if weight.group == "mlp")
    matrices = sum(weight.num_params for weight in layer if weight.columns > 1)

    assert matrices == row["per_block"]
    assert mlp / matrices == pytest.approx(row["mlp_share"], abs=0.0001)
    assert count_parameters(shape).total == pytest.approx(row["quoted_total"], rel=row["rel"])


def test_parameters_of_mixtral() -> None:
    """All experts are resident, two of eight are active, and 80 GB are too small."""
    row = TABLE["parameters"]["mixtral_8x7b"]
    shape = read_planned_model("mixtral-8x7b").shape
    plan = planned("mixtral-8x7b", "h100")
    stored = bytes_formula(group_params(shape), FULL_PRECISION)

    print(stored.substituted)
    assert count_parameters(shape).total == pytest.approx(row["total"], rel=row["rel"])
    assert count_active_parameters(shape).total == pytest.approx(row["active"], rel=row["rel"])
    assert stored.value == pytest.approx(row["bf16_bytes"], rel=row["rel"])
    assert (plan.verdict != "does not load") is row["fits_one_80GB"]


@pytest.mark.parametrize(
    ("cell", "stored"), [("bf16", FULL_PRECISION), ("fp8", EIGHT_BITS), ("int4", FOUR_BITS)]
)
def test_llama_3_70b_on_h100(cell: str, stored: Any) -> None:
    """Weights and verdict at each precision."""
    table = TABLE["llama3_70b_on_h100"]
    row, rel = table[cell], table["rel"]
    plan = planned("llama-3-70b", "h100", weight_format=stored)

    show(plan, "weights")
    show(plan, "decode floor")
    bandwidth = table["gpu_bandwidth_bytes_per_s"]
    assert plan.query.gpu.bandwidth == pytest.approx(bandwidth, rel=0.001)
    assert plan.weight_bytes == pytest.approx(row["weight_bytes"], rel=rel)
    assert plan.verdict == row.get("verdict", row.get("verdict_one_gpu"))
    if "kv_tokens" in row:
        assert plan.tokens.mid == pytest.approx(row["kv_tokens"], rel=row["kv_tokens_rel"])


@pytest.mark.parametrize(
    ("stored", "gpus", "cell", "key"),
    [
        (FULL_PRECISION, "h100", "bf16", "decode_floor_ms_one_gpu"),
        (FULL_PRECISION, "2x h100", "bf16", "decode_floor_ms_two_gpus"),
        (EIGHT_BITS, "h100", "fp8", "decode_floor_ms"),
        (FOUR_BITS, "h100", "int4", "decode_floor_ms"),
    ],
)
def test_decode_floor_of_the_weights_alone(stored: Any, gpus: str, cell: str, key: str) -> None:
    """With next to no context the floor is weights over bandwidth, halved by a second GPU."""
    table = TABLE["llama3_70b_on_h100"]
    plan = planned("llama-3-70b", gpus, weight_format=stored, workload=parse_workload("tokens=16"))

    show(plan, "decode floor")
    assert plan.decode[0].seconds is not None
    assert 1000 * plan.decode[0].seconds == pytest.approx(table[cell][key], rel=table["rel"])


def test_llama_31_8b_on_one_h100() -> None:
    """The pool lies in the predicted range, and what it holds follows from it."""
    row = TABLE["llama31_8b_one_h100"]
    gpu = override_gpu(query().gpu, int(row["gpu_total_gib"] * GIB))
    workload = parse_workload("p50=1800,p95=2400")
    plan = planned("llama-3.1-8b", gpu=gpu, engine="vllm@0.21", workload=workload)
    pool = int(row["kv_pool_gib"] * GIB)
    cost = plan.stage.cost

    show(plan, "KV pool")
    assert pool in plan.pool
    assert pool == pytest.approx(plan.pool.mid, rel=0.03)
    assert cost.tokens(pool, 131_072).value == pytest.approx(row["kv_tokens"], rel=row["rel"])
    assert cost.concurrency(pool, 131_072).value == pytest.approx(
        row["concurrency_at_131072"], abs=row["concurrency_at_131072_tol"]
    )
    assert cost.requests(pool, 1800).value == pytest.approx(row["chats_of_1800"], abs=1)
    assert cost.requests(pool, 2400).value == pytest.approx(row["chats_of_2400"], abs=1)
    low, high = row["recommended_max_num_seqs"]
    assert low <= plan.fit.max_num_seqs <= high


def test_the_pool_of_256_slots_on_one_h100() -> None:
    """54.8 GiB are what vLLM 0.11 leaves at its share of 0.9 when told to serve 256 requests.

    71.19 GiB less 14.99 of weights, 1.27 of the step that sorts 256 rows, 0.12 outside the
    allocator. The table states no release; this setting follows from the sources, and a 0.11
    boot with it is published with 54.68.
    """
    row = TABLE["llama31_8b_one_h100"]
    gpu = override_gpu(query().gpu, int(row["gpu_total_gib"] * GIB))
    plan = planned("llama-3.1-8b", gpu=gpu, engine="vllm@0.11", max_num_seqs=256)

    show(plan, "KV pool")
    assert plan.pool.mid / GIB == pytest.approx(row["kv_pool_gib"], rel=row["rel"])
    tokens = plan.stage.cost.tokens(plan.pool.mid, 131_072).value
    assert tokens == pytest.approx(row["kv_tokens"], rel=row["rel"])


def test_the_agent_case() -> None:
    """76 requests of 7,000 tokens fit in 533,000, and 70 are recommended."""
    row = TABLE["agent_case"]
    plan = planned(workload=parse_workload(f"prompt={row['prompt']},output={row['output']}"))
    pool = int(row["pool_tokens"]) * 131_072
    fit = plan.stage.cost.requests(pool, row["final_tokens"])
    recommended = replace(plan.fit.recommended, symbols={"fit": fit.value, "max_num_seqs": 1024})

    assert plan.choices.workload.p95 == row["final_tokens"]
    assert fit.value == row["fit"]
    assert evaluate(recommended.substituted) == row["recommended_max_num_seqs"]


def test_a_higher_utilization() -> None:
    """From 0.92 to 0.95 the pool gains 2.37 GiB, 19,000 tokens and 10 chats."""
    row = TABLE["utilization_raise"]
    gpu = override_gpu(query().gpu, int(row["gpu_total_gib"] * GIB))
    asked = query(gpu=gpu, engine="vllm@0.21", workload=parse_workload("tokens=1800"))
    before, after = (
        answer(replace(asked, utilization=share)) for share in (row["from_"], row["to"])
    )
    gained = after.pool.mid - before.pool.mid

    show(after, "kept back")
    assert gained / GIB == pytest.approx(row["extra_gib"], rel=row["rel"])
    assert after.tokens.mid - before.tokens.mid == pytest.approx(
        row["extra_tokens"], rel=row["rel"]
    )
    assert after.fit.p95.mid - before.fit.p95.mid == pytest.approx(
        row["extra_chats_of_1800"], abs=1
    )


def test_fp8_kv_or_8_bit_weights_of_an_8b_model() -> None:
    """fp8 KV doubles 449,000 tokens; 8-bit weights free 7.5 GiB, 61,000 tokens: fp8 KV wins."""
    row = TABLE["fp8_kv_or_8bit_weights"]["llama3_8b"]
    pool = int(row["pool_gib"] * GIB)
    plain = planned("llama-3-8b")
    narrow = planned("llama-3-8b", kv_cache_dtype="fp8")
    eight = planned("llama-3-8b", weight_format=EIGHT_BITS)
    tokens = plain.stage.cost.tokens(pool, 8192).value
    doubled = narrow.stage.cost.tokens(pool, 8192).value
    freed = plain.weight_bytes - eight.weight_bytes
    more = plain.stage.cost.tokens(pool + freed, 8192).value - tokens

    assert plain.weight_bytes / GIB == pytest.approx(row["weights_gib"], rel=row["rel"])
    assert doubled == pytest.approx(row["fp8_kv_tokens"], rel=row["rel"])
    assert doubled - tokens == pytest.approx(row["extra_from_fp8_kv"], rel=row["rel"])
    assert more == pytest.approx(row["extra_from_8bit_weights"], rel=row["rel"])
    assert (doubled - tokens > more) is (row["winner"] == "fp8 KV")


def test_fp8_kv_or_8_bit_weights_of_a_70b_model() -> None:
    """On two H100s 8-bit weights free 70e9 bytes, which is more than fp8 KV gains."""
    row = TABLE["fp8_kv_or_8bit_weights"]["llama3_70b_two_h100"]
    plain = planned("llama-3-70b", "2x h100")
    narrow = planned("llama-3-70b", "2x h100", kv_cache_dtype="fp8")
    eight = planned("llama-3-70b", "2x h100", weight_format=EIGHT_BITS)
    freed = 2 * (plain.weight_bytes - eight.weight_bytes)

    assert freed == pytest.approx(row["freed_bytes"], rel=row["rel"])
    assert eight.tokens.mid > narrow.tokens.mid
    assert row["winner"] == "8-bit weights"


def test_real_checkpoints_are_larger() -> None:
    """A real FP8 checkpoint keeps embeddings and head: 72.7e9; AWQ in groups of 128: 39.8e9."""
    model = read_planned_model("llama-3-70b")
    for name, num_bytes in (("fp8", 72.7e9), ("awq", 39.8e9)):
        stored = bytes_formula(group_params(model.shape), find_weight_format(name))
        assert stored.value == pytest.approx(num_bytes, rel=0.005), stored.substituted
    assert isinstance(model, PlannedModel)
