"""Caches as engines of some versions lay them out."""

from typing import Any

import pytest

from nanoserve.bench.boot_cache import cache_layout
from nanoserve.bench.boot_case import BootCase, read_case
from nanoserve.bench.boot_errors import read_configs
from nanoserve.bench.boot_facts import UnsupportedRecordError

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


def test_latents_were_once_whole_heads() -> None:
    """DeepSeek-V2-Lite kept 16 heads of 256 in K and V in 27 layers before 0.7.1."""
    model = {"config_ref": "deepseek-ai/DeepSeek-V2-Lite-Chat", "max_model_len": 8192}
    before = cache_layout(case_of(**model, engine_version="0.6.4"))
    since = cache_layout(case_of(**model, engine_version="0.7.1"))

    assert before.groups.block_bytes == 16 * 27 * 16 * 512 * 2
    assert since.groups.block_bytes == 16 * 27 * 576 * 2


@pytest.mark.parametrize(
    ("model", "dtype", "bytes_per_token"),
    [
        ("Qwen/Qwen3-8B", "q8_0", 36 * 8 * 2 * 128 * 34 // 32),
        ("Qwen/Qwen3-8B", "nvfp4", 36 * 8 * 2 * (64 + 8)),
        ("deepseek-ai/DeepSeek-R1", "fp8_ds_mla", 61 * 656),
        ("Qwen/Qwen3-8B", "fp8 (inferred)", 36 * 8 * 2 * 128),
    ],
)
def test_scales_are_kept_beside_values(model: str, dtype: str, bytes_per_token: int) -> None:
    """8.5 bits in blocks of 32, 4.5 with a scale for 16, 656 bytes of a latent."""
    layout = cache_layout(case_of(config_ref=model, kv_cache_dtype=dtype))

    assert layout.block_bytes == 16 * bytes_per_token


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        (
            {"kv_cache_dtype": "nvfp4", "config_ref": "Qwen/Qwen3.6-35B-A3B"},
            "KV format with scales beside states",
        ),
        ({"kv_cache_dtype": "q9_9"}, "KV format not known"),
        (
            {"config_ref": "google/gemma-3-27b-it", "engine_version": "0.24", "gpu": {}},
            "token budget not stated",
        ),
        (
            {"config_ref": "google/gemma-3-27b-it", "engine": "sglang"},
            "pool split by kind of layer",
        ),
    ],
)
def test_caches_that_cannot_be_laid_out(changes: dict[str, Any], kind: str) -> None:
    """Each is refused by name."""
    with pytest.raises(UnsupportedRecordError) as caught:
        cache_layout(case_of(**changes))

    assert caught.value.kind == kind
