"""Bytes of a token in bf16 on one GPU, every layer keeping it: a table worked out elsewhere.

`kv_bytes_per_token.json` was computed from the same configs by other code, an indexer's key
included; where that code counts layers that keep nothing, the figure here is worked by hand.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoserve.bench.boot_errors import read_configs
from nanoserve.errors import ModelError
from nanoserve.plan.kv_layout import CacheFormat, full_bytes_per_token
from nanoserve.spec.read_shape import read_model_shape

TABLE: dict[str, int] = json.loads((Path(__file__).parent / "kv_bytes_per_token.json").read_text())
CONFIGS = read_configs()
NEMOTRON = "nvidia/NVIDIA-Nemotron-3"
BY_HAND = {
    # Attention in 6, 8 and 10 of the layers, which `hybrid_override_pattern` marks with a star.
    f"{NEMOTRON}-Nano-30B-A3B-BF16": 6 * 2 * (128 + 128) * 2,
    f"{NEMOTRON}-Nano-30B-A3B-NVFP4": 6 * 2 * (128 + 128) * 2,
    f"{NEMOTRON}-Super-120B-A12B-FP8": 8 * 2 * (128 + 128) * 2,
    f"{NEMOTRON}-Super-120B-A12B-NVFP4": 8 * 2 * (128 + 128) * 2,
    "nvidia/Nemotron-H-56B-Base-8K": 10 * 8 * (128 + 128) * 2,
    # Keys of 192 and values of 128; 9 full layers with 4 heads, 39 sliding ones with 8.
    "XiaomiMiMo/MiMo-V2-Flash": (9 * 4 + 39 * 8) * (192 + 128) * 2,
    # Of 40 layers 8 attend to the image's tokens alone.
    "meta-llama/Llama-3.2-11B-Vision": 32 * 8 * (128 + 128) * 2,
}
UNREADABLE = {  # refused by name: see test_param_counts
    "moonshotai/Kimi-K3",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    f"{NEMOTRON}.5-Lightning-30B-A3B-NVFP4",
    "sgl-project/DeepSeek-V4-Flash-FP8",
    "sgl-project/DeepSeek-V4-Pro-FP8",
    "Qwen/Qwen3.5-2B",
    "Qwen3-Omni-30B-A3B talker",
}


def bytes_of(model: str) -> int:
    config: Any = CONFIGS[model]
    return full_bytes_per_token(read_model_shape(config, "config.json"), CacheFormat())


@pytest.mark.parametrize("model", sorted(TABLE.keys() - UNREADABLE - BY_HAND.keys()))
def test_a_token_costs_what_the_table_says(model: str) -> None:
    """Family by family, to the byte."""
    assert bytes_of(model) == TABLE[model]


@pytest.mark.parametrize(("model", "expected"), BY_HAND.items())
def test_layers_without_a_cache_cost_nothing(model: str, expected: int) -> None:
    """Layers of states or of an image's tokens are not multiplied."""
    assert bytes_of(model) == expected
    assert TABLE[model] != expected


@pytest.mark.parametrize("model", sorted(UNREADABLE))
def test_the_rest_is_refused(model: str) -> None:
    """A config that does not say it all gives no figure."""
    with pytest.raises(ModelError):
        bytes_of(model)
