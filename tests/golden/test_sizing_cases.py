"""Every cell of sizing_cases.json: what public reports measured; the formula is printed."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoserve.capacity.cache_cost import CacheCost
from nanoserve.capacity.kv_groups import group_cache, without_windows
from nanoserve.plan.kv_layout import CacheFormat, full_bytes_per_token, state_bytes_per_request
from nanoserve.spec.gpu_spec import override_gpu
from nanoserve.spec.read_shape import read_model_shape
from nanoserve.units import GIB, MIB
from tests.planner import planned, query

GOLDEN = Path(__file__).parent
CASES: dict[str, Any] = {
    case["id"]: case for case in json.loads((GOLDEN / "sizing_cases.json").read_text())
}
ROWS = [json.loads(line) for line in (GOLDEN / "planner_configs.jsonl").read_text().splitlines()]
CONFIGS = {row["model"]: row["config"] for row in ROWS}


def token_bytes(model: str, tp: int = 1, itemsize: int = 2) -> int:
    """Return the bytes of a token of a preset on one rank."""
    shape = query(model).model.shape
    return full_bytes_per_token(shape, CacheFormat(itemsize=itemsize, tp=tp))


def tokens(cost: CacheCost, pool_gib: float, longest: int) -> int:
    """Return what a pool holds, and print how."""
    formula = cost.tokens(int(pool_gib * GIB), longest)
    print(f"{formula.expression} = {formula.substituted} = {formula.value}")
    return int(formula.value)


def test_qwen3_1_7b() -> None:
    """18.78 GiB hold 175,856 tokens."""
    case = CASES["qwen3-1.7b-33263"]
    cost = planned("qwen3-1.7b").stage.cost

    assert token_bytes("qwen3-1.7b") == case["expect"]["bytes_per_token"]
    found = tokens(cost, case["cfg"].get("kv_gib", case["kv_gib"]), 40_960)
    assert found == pytest.approx(case["expect"]["tokens"], abs=case["tol_tokens"])
    assert cost.request_bytes(1024) == 112 * MIB


def test_llama_31_8b_as_llm_d_measured() -> None:
    """VLLM 0.19 at 0.95 left 58.11 GiB of 79.19; predicted within 1 %, tokens to the block."""
    case = CASES["llama31-8b-h100-llmd"]
    gpu = override_gpu(query().gpu, int(case["cuda_gib"] * GIB))
    asked = {"gpu": gpu, "engine": "vllm@0.19", "utilization": case["util"]}
    plan, narrow = planned(**asked), planned(**asked, kv_cache_dtype="fp8")
    measured = case["measured"]

    assert plan.pool.mid / GIB == pytest.approx(case["expect"]["kv_gib"], rel=case["tol_rel"])
    assert plan.weight_bytes / GIB == pytest.approx(measured["weights_gib"], rel=0.003)
    found = tokens(plan.stage.cost, measured["kv_gib"], 131_072)
    assert found == pytest.approx(measured["tokens"], rel=0.0001)
    found = tokens(narrow.stage.cost, measured["kv_gib"], 131_072)
    assert found == pytest.approx(measured["tokens_fp8"], rel=0.0001)


def test_llama_4_at_a_million_tokens() -> None:
    """Eight ranks keep 24,576 bytes a token each; a million tokens need 24 GiB of each GPU."""
    case = CASES["llama4-16118"]
    expect = case["expect"]
    plan = planned("llama-4-maverick", "8x h200", max_model_len=case["max_len"])
    cost = plan.stage.cost

    assert token_bytes("llama-4-maverick", tp=8) == expect["bytes_per_token_per_gpu"]
    assert cost.request_bytes(case["max_len"]) / GIB == expect["need_gib"]
    longest = int(9.97 * GIB) // (16 * expect["bytes_per_token_per_gpu"]) * 16
    assert cost.request_bytes(longest) <= 9.97 * GIB
    assert longest == pytest.approx(expect["max_len_at_9_97"], abs=64)


def test_llama_4_with_chunks_let_go() -> None:
    """With the hybrid manager a quarter of the layers keeps all: 6.28 GiB."""
    case = CASES["llama4-16118"]
    shape = query("llama-4-maverick").model.shape
    cache = CacheFormat(tp=8, max_num_batched_tokens=8192)
    groups = group_cache(shape, cache)
    found = groups.request_bytes(case["max_len"], cache) / GIB

    assert found == pytest.approx(case["expect"]["need_gib_chunk_freed"], rel=0.005)


def test_qwen25_7b() -> None:
    """3,072 tokens are 168 MiB."""
    expect = CASES["qwen25-7b-22291"]["expect"]

    assert token_bytes("qwen2.5-7b") == expect["bytes_per_token"]
    assert planned("qwen2.5-7b").stage.cost.request_bytes(3072) / MIB == expect["mib_3072"]


def test_a_14b_distill_on_two_gpus() -> None:
    """Half of the heads on each of two GPUs: 12 GiB of each at 131,072 tokens."""
    expect = CASES["r1-qwen14b-13061"]["expect"]
    plan = planned("qwen2.5-14b", "2x a100 40gb")
    narrow = planned("qwen2.5-14b", "2x a100 40gb", kv_cache_dtype="fp8")

    assert token_bytes("qwen2.5-14b", tp=2) == expect["bytes_per_token_per_gpu"]
    need = plan.stage.cost.request_bytes(131_072) / GIB
    assert need == expect["need_gib_per_gpu_131072"]
    assert plan.stage.cost.request_bytes(81_536) / GIB == pytest.approx(
        expect["gib_for_81536"], abs=0.001
    )
    found = tokens(narrow.stage.cost, expect["gib_for_81536"], 131_072)
    assert found == pytest.approx(expect["fp8_tokens"], rel=0.0002)


@pytest.mark.parametrize(
    ("pool_gib", "key"), [(64.68, "tokens_at_64_68_gib"), (103.92, "tokens_at_103_92_gib")]
)
def test_gemma_4_31b(pool_gib: float, key: str) -> None:
    """Ten full layers and fifty sliding ones, as an H200 logged them."""
    case = CASES["gemma4-31b-configiq112"]
    step = case["cfg"]["max_num_batched_tokens"]
    plan = planned("gemma-4-31b", "h200", max_num_batched_tokens=step)
    longest = case["cfg"]["max_len"]
    per_token = plan.stage.cost.request_bytes(longest) / longest / 1024

    assert per_token == pytest.approx(case["expect"]["kib_per_token"], rel=case["tol_rel"])
    found = tokens(plan.stage.cost, pool_gib, longest)
    assert found == pytest.approx(case["expect"][key], rel=case["tol_rel"])


def test_qwen36_27b_in_llama_cpp() -> None:
    """16 of 64 layers keep K and V, 48 a state in float32."""
    case = CASES["qwen36-27b-lmstudio1862"]
    shape = read_model_shape(CONFIGS["nvidia/Qwen3.6-27B-NVFP4"], "config.json")
    cache = CacheFormat(state_itemsize=4)

    assert (
        full_bytes_per_token(without_windows(shape), cache) * 262_144 / MIB
        == (case["expect"]["kv_mib"])
    )
    states = case["cfg"]["slots"] * state_bytes_per_request(shape, cache)
    assert states / MIB == case["expect"]["state_mib"]
