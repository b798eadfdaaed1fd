"""Why a pool is set apart."""

from typing import Any

import pytest

from nanoserve.bench.boot_case import read_case
from nanoserve.bench.boot_doubts import doubts_of
from nanoserve.bench.boot_errors import read_configs
from nanoserve.bench.boot_predict import predict_pool

CONFIGS = read_configs()
RECORD: dict[str, Any] = {
    "engine": "vllm",
    "engine_version": "0.9.1 V1",
    "config_ref": "Qwen/Qwen3-8B",
    "tensor_parallel": 1,
    "gpu": {"mem_gib": 39.49},
    "gpu_memory_utilization": 0.9,
    "max_model_len": 8192,
    "weights_gib": 15.27,
    "kv_cache_gib": 1.0,
}
WHOLE_PROMPTS = {"engine_version": "0.3.0", "max_model_len": None, "weights_gib": None}
VAGUE = {"quantization": "4bit", "weights_gib": None}


def doubts(**changes: Any) -> tuple[str, ...]:
    case = read_case(RECORD | changes, CONFIGS)
    return doubts_of(case, predict_pool(case))


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, ()),
        ({"weights_gib": 16.7}, ()),
        ({"weights_gib": 17.2}, ("weights are not the model's",)),
        ({"activation_peak_gib": 9.4}, ()),
        ({"non_torch_gib": 1.1}, ()),
        ({"non_torch_gib": 1.3}, ("other processes",)),
        ({"gpu": {"name": "GB10"}, "engine_version": "0.24"}, ("unified memory decides",)),
    ],
)
def test_what_speaks_against_a_record(changes: dict[str, Any], reasons: tuple[str, ...]) -> None:
    """Its weights, what lies outside the allocator, and memory shared with the host."""
    assert doubts(**changes) == reasons


def test_a_length_decides_where_a_whole_prompt_is_profiled() -> None:
    """Mistral's 32,768 tokens are 3 GiB of a small pool, and nothing of a large one."""
    mistral = WHOLE_PROMPTS | {"config_ref": "mistralai/Mistral-7B-v0.1"}

    assert doubts(**mistral) == ("length decides",)
    assert doubts(**mistral | {"max_model_len": 32_768}) == ()
    assert doubts(**mistral | {"gpu": {"mem_gib": 191.7}}) == ()
    assert doubts(**mistral | {"config_ref": "meta-llama/Llama-2-7b-hf"}) == ()


def test_a_vague_format_decides_beside_large_weights() -> None:
    """A tenth of 4-bit weights is much of the pool of a small card, and little of a large one."""
    assert doubts(**VAGUE | {"gpu": {"mem_gib": 8.0}}) == ("weight format decides",)
    assert doubts(**VAGUE) == ()


def test_what_was_logged_of_the_pool_changes_nothing() -> None:
    """Whether a record is set apart does not follow from the prediction's error."""
    assert doubts(kv_cache_gib=0.1) == doubts(kv_cache_gib=19.0) == ()


def test_images_decide_where_the_largest_takes_much_of_the_pool() -> None:
    """V0 may profile 16 GiB of images, or none; V1 profiles them on a step's tokens."""
    seeing = {"config_ref": "Qwen/Qwen2-VL-7B-Instruct", "weights_gib": 15.51}

    assert doubts(**seeing, engine_version="0.6.6 V0", gpu={"mem_gib": 79.1}) == ("images decide",)
    assert doubts(**seeing) == ()
    assert doubts(**seeing, engine_version="0.6.6 V0", gpu={"mem_gib": 191.7}) == ()
    assert doubts(engine_version="0.6.6 V0") == ()
