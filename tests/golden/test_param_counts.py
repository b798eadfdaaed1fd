"""Parameters of every config: what transformers counts on the meta device, to the last one.

`planner_configs.jsonl` holds the configs and `param_counts.json` the counts; both are made by
`recipes/param_counts.py`. A config that transformers does not know has a reason in their place.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoserve.errors import ModelError
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.param_count import count_active_parameters, count_parameters
from nanoserve.spec.read_shape import read_model_shape

GOLDEN = Path(__file__).parent
COUNTS: dict[str, Any] = json.loads((GOLDEN / "param_counts.json").read_text())
ROWS = [json.loads(line) for line in (GOLDEN / "planner_configs.jsonl").read_text().splitlines()]
CONFIGS: dict[str, Any] = {row["model"]: row["config"] for row in ROWS}
ULTRA = "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B"
LIGHTNING = "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"
REFUSED = {  # by the key in the message; transformers would count its class's defaults instead
    "deepseek-ai/DeepSeek-V4-Flash": "compress_ratios",
    "deepseek-ai/DeepSeek-V4-Flash-0731": "compress_ratios",
    "deepseek-ai/DeepSeek-V4-Pro": "compress_ratios",
    "nvidia/DeepSeek-V4-Flash-NVFP4": "compress_ratios",
    "nvidia/DeepSeek-V4-Pro-NVFP4": "compress_ratios",
    "sgl-project/DeepSeek-V4-Flash-FP8": "compress_ratios",
    "sgl-project/DeepSeek-V4-Pro-FP8": "compress_ratios",
    "moonshotai/Kimi-K3": "linear_num_heads",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "block_configs",
    f"{ULTRA}-BF16": "hybrid_override_pattern",
    f"{ULTRA}-FP8": "hybrid_override_pattern",
    f"{ULTRA}-NVFP4": "hybrid_override_pattern",
    LIGHTNING: "hybrid_override_pattern",
    "Qwen/Qwen3.5-2B": "hidden_size",
    "Qwen3-Omni-30B-A3B talker": "model_type",
}
BY_HAND = {  # remote code: no class to count; worked out from the published shapes
    "Qwen/Qwen-1_8B": 1_836_828_672,
    "baichuan-inc/Baichuan2-7B-Chat": 7_505_973_248,
    "internlm/internlm-chat-7b": 7_321_948_160,
    # as Phi-3.5-mini, with the tower of its published file; what its checkpoint holds
    "microsoft/Phi-3.5-vision-instruct": 3_821_079_552 + 325_541_888,
    "XiaomiMiMo/MiMo-7B-Base": 7_622_397_952 + 36 * (4096 + 2 * 1024),  # and biases on q, k, v
}
# transformers gives the 256 experts of LongCat that compute nothing a gate and an up projection;
# the checkpoint and its published 560B do not have them.
NOT_IN_CHECKPOINT = {"defaults of longcat_flash": 28 * 256 * 2 * 2048 * 6144}
KNOWN = [model for model in CONFIGS if "total" in COUNTS[model] and model not in REFUSED]


def shape_of(model: str) -> ModelShape:
    return read_model_shape(CONFIGS[model], "config.json")


@pytest.mark.parametrize("model", KNOWN)
def test_counts_equal_those_of_transformers(model: str) -> None:
    """Text model and tower each have exactly the parameters that transformers counts."""
    count, oracle = count_parameters(shape_of(model)), COUNTS[model]

    text = oracle["total"] - oracle["towers"] - NOT_IN_CHECKPOINT.get(model, 0)
    assert count.total - count.tower == text
    assert count.tower in (0, oracle["towers"])


@pytest.mark.parametrize("model", KNOWN)
def test_a_tower_is_counted_or_said_not_to_be(model: str) -> None:
    """Where transformers has a vision tower, it is counted or listed as uncounted."""
    shape = shape_of(model)

    has_tower = COUNTS[model]["towers"] > 0 and CONFIGS[model]["model_type"] != "minimax_m3"
    assert has_tower == (count_parameters(shape).tower > 0 or "vision" in shape.uncounted)


@pytest.mark.parametrize(("model", "total"), BY_HAND.items())
def test_remote_code_models_are_counted_from_their_shape(model: str, total: int) -> None:
    """Families without a class in transformers have the totals worked out by hand."""
    assert count_parameters(shape_of(model)).total == total


@pytest.mark.parametrize(("model", "key"), REFUSED.items())
def test_incomplete_and_unknown_configs_are_refused_by_key(model: str, key: str) -> None:
    """What cannot be sized is refused, and the message names the key."""
    with pytest.raises(ModelError, match=key):
        shape_of(model)


def test_every_config_is_counted_or_refused() -> None:
    """No config falls between the lists."""
    assert {*KNOWN, *BY_HAND, *REFUSED} == set(CONFIGS)


@pytest.mark.parametrize(
    ("model", "total"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("meta-llama/Meta-Llama-3-70B", 70_553_706_496),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("mistralai/Mistral-7B-v0.1", 7_241_732_096),
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("google/gemma-3-27b-it", 27_432_406_640),
        ("openai/gpt-oss-20b", 20_914_757_184),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79_674_391_296),
        ("deepseek-ai/DeepSeek-V3", 671_026_404_352),
        ("tiiuae/falcon-7b", 6_921_720_704),
    ],
)
def test_published_totals(model: str, total: int) -> None:
    """The totals people know."""
    assert count_parameters(shape_of(model)).total == total


@pytest.mark.parametrize(
    ("model", "active_billions"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", 12.9),
        ("deepseek-ai/DeepSeek-V3", 37.6),
        ("Qwen/Qwen3-30B-A3B", 3.35),
        ("openai/gpt-oss-120b", 5.7),
        ("moonshotai/Kimi-K2-Instruct", 32.9),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 3.6),
    ],
)
def test_active_parameters(model: str, active_billions: float) -> None:
    """One token visits the parameters that the model's name or card states."""
    active = count_active_parameters(shape_of(model)).total

    assert active / 1e9 == pytest.approx(active_billions, rel=0.02)
