"""Pools, tokens and concurrency that follow from a record's model."""

from typing import Any

import pytest

from nanoserve.bench.boot_case import BootCase, read_case
from nanoserve.bench.boot_errors import read_configs
from nanoserve.bench.boot_facts import UnsupportedRecordError
from nanoserve.bench.boot_predict import predict_concurrency, predict_pool, predict_tokens
from nanoserve.units import GIB

CONFIGS = read_configs()
RECORD: dict[str, Any] = {
    "id": 1,
    "engine": "vllm",
    "engine_version": "0.9.1 V1",
    "config_ref": "Qwen/Qwen3-8B",
    "tensor_parallel": 1,
    "gpu": {"mem_gib": 39.49},
    "gpu_memory_utilization": 0.9,
    "max_model_len": 40_960,
}


def case_of(**changes: Any) -> BootCase:
    return read_case(RECORD | changes, CONFIGS)


def test_a_pool_worked_once() -> None:
    """0.9 of 39.49 GiB less 15.27 of weights, 1.44 of a sorted sampler and 0.12 are 18.71."""
    predicted = predict_pool(case_of())

    assert predicted.weights / GIB == pytest.approx(15.268, abs=0.001)
    assert predicted.activation.mid / GIB == pytest.approx(1.44, abs=0.01)
    assert predicted.pool.mid / GIB == pytest.approx(18.71, abs=0.01)
    assert 18.69 * GIB in predicted.pool  # as 0.9.1 logged


def test_sglang_keeps_a_share_of_what_was_free() -> None:
    """0.88 of what is free at the start, less the weights: 54.26 GiB were logged."""
    case = case_of(
        engine="sglang",
        engine_version="0.4.1",
        config_ref="meta-llama/Llama-3.1-8B-Instruct",
        gpu={"mem_gib": 79.19},
        gpu_memory_utilization=0.88,
    )

    assert predict_pool(case).pool.mid / GIB == pytest.approx(54.26, abs=0.05)


def test_unsloth_asks_for_fewer_slots() -> None:
    """2.64 GiB were logged on a T4 at 0.6, with the 160 slots that 3 GiB of room give."""
    case = case_of(
        engine_version="0.7.2 V0 via unsloth",
        config_ref="unsloth/Meta-Llama-3.1-8B-Instruct (bnb 4-bit)",
        quantization="bitsandbytes 4bit",
        gpu={"mem_gib": 14.74},
        gpu_memory_utilization=0.6,
        max_model_len=512,
    )

    assert predict_pool(case).pool.mid / GIB == pytest.approx(2.64, rel=0.03)


def test_unsloth_asks_for_a_share_of_what_is_free() -> None:
    """0.7 of an 80 GB card less its context: 45.21 GiB were logged, 0.35 less than of the total."""
    changes = {
        "config_ref": "microsoft/phi-4",
        "quantization": "bitsandbytes 4bit",
        "gpu": {"mem_gib": 79.15},
        "gpu_memory_utilization": 0.7,
        "max_model_len": 512,
    }
    its = predict_pool(case_of(engine_version="0.7.3 V0 via unsloth", **changes))

    assert its.pool.mid / GIB == pytest.approx(45.21, rel=0.01)
    assert 0.7 * 79.15 * GIB - its.pool.mid - its.weights - its.activation.mid > 0.4 * GIB


@pytest.mark.parametrize(("memory", "held"), [(21.48, 0.25), (79.19, 2.1)])
def test_small_cards_without_a_name_have_no_fast_link(memory: float, held: float) -> None:
    """0.20 GiB of each of four 22 GB cards lay outside the allocator; of an H100 over 2."""
    predicted = predict_pool(
        case_of(gpu={"mem_gib": memory}, tensor_parallel=4, engine_version="0.8.5 V0")
    )

    assert predicted.non_torch.mid / GIB == pytest.approx(held)


def test_an_amd_card_is_known_by_the_record() -> None:
    """HIP holds 0.4 GiB more; a card of the table says so itself."""
    cuda, hip = (
        predict_pool(case_of(engine_version=version)) for version in ("0.9.1", "0.9.1 ROCm")
    )
    named = predict_pool(case_of(gpu={"name": "MI300X"}))

    assert (hip.non_torch.mid - cuda.non_torch.mid) / GIB == pytest.approx(0.42, abs=0.01)
    assert named.non_torch == hip.non_torch


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"gpu": {}}, "no device memory"),
        ({"gpu_memory_utilization": None, "engine_version": "V1 2026"}, "no utilization"),
        ({"engine": "tensorrt-llm"}, "no rule from a share to a pool"),
        ({"engine": "vllm-kunlun"}, "fork with a budget of its own"),
        ({"tensor_parallel": None}, "GPUs that share the model not stated"),
        ({"pipeline_parallel": 64}, "ranks do not divide the model"),
        (
            {"gpu": {"name": "RTX 4090"}, "weights_gib": 15.0, "kv_cache_gib": 90.0},
            "not the default utilization or card",
        ),
    ],
)
def test_pools_that_cannot_be_predicted(changes: dict[str, Any], kind: str) -> None:
    """Each is refused by name."""
    with pytest.raises(UnsupportedRecordError) as caught:
        predict_pool(case_of(**changes))

    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("changes", "pool_gib", "tokens"),
    [
        ({}, 18.69, 136_096),
        (
            {
                "config_ref": "google/gemma-3-27b-it",
                "engine_version": "0.10.2",
                "gpu": {"mem_gib": 139.8},
                "max_model_len": 4096,
            },
            109.86,
            205_696,
        ),
        (
            {
                "config_ref": "Qwen/Qwen3.6-35B-A3B",
                "engine_version": "0.24",
                "max_model_len": 32_768,
            },
            13.1,
            560_505,
        ),
        ({"pipeline_parallel": 4}, 18.69, 4 * 136_096),
    ],
)
def test_tokens_of_a_pool(changes: dict[str, Any], pool_gib: float, tokens: int) -> None:
    """Blocks times 16, over the groups before 0.20, by the longest length since."""
    found = predict_tokens(case_of(**changes), int(pool_gib * GIB))

    assert found == pytest.approx(tokens, rel=0.0002)


def test_concurrency_is_blocks_over_a_requests() -> None:
    """Gemma 3 27B at 4,096 tokens had 50.05 requests in 109.86 GiB."""
    case = case_of(
        config_ref="google/gemma-3-27b-it",
        engine_version="0.10.2",
        gpu={"mem_gib": 139.8},
        max_model_len=4096,
    )

    assert predict_concurrency(case, int(109.86 * GIB)) == pytest.approx(50.05, abs=0.01)


def test_no_longest_length_no_concurrency() -> None:
    """Nothing is taken for the length."""
    with pytest.raises(UnsupportedRecordError, match="longest length"):
        predict_concurrency(case_of(max_model_len=None), GIB)
