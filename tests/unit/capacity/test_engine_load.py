"""What an engine runs of a model."""

import pytest

from nanoserve.bench.boot_errors import read_configs
from nanoserve.capacity.attention_workspace import NO_WORKSPACE
from nanoserve.capacity.engine_load import ServingLimits, engine_load
from nanoserve.capacity.engine_profile import find_profile
from nanoserve.spec.gpu_names import find_gpu
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.read_shape import read_model_shape

CONFIGS = read_configs()
LIMITS = ServingLimits(256, 2048, 8192)


def shape_of(model: str) -> ModelShape:
    return read_model_shape(CONFIGS[model], "config.json")


def test_experts_of_a_token_count_together() -> None:
    """Qwen3 30B A3B: 8 of 768, and their workspace; a dense model keeps none."""
    profile = find_profile("vllm@0.17")
    load = engine_load(shape_of("Qwen/Qwen3-30B-A3B"), profile, LIMITS)
    dense = engine_load(shape_of("Qwen/Qwen3-8B"), profile, LIMITS)

    assert load.active_intermediate_size == 8 * 768
    assert load.expert_values_per_token == 8 * (2048 + 768)
    assert (dense.active_intermediate_size, dense.expert_values_per_token) == (12_288, 0)


def test_ranks_share_the_mlp_and_the_heads() -> None:
    """On 2 ranks half the width; the workspace's projection is for half the heads."""
    shape, profile = shape_of("deepseek-ai/DeepSeek-V2-Lite-Chat"), find_profile("vllm@0.17")
    one = engine_load(shape, profile, LIMITS)
    two = engine_load(shape, profile, ServingLimits(256, 2048, 8192, tensor_parallel=2))

    assert two.active_intermediate_size * 2 == one.active_intermediate_size
    assert two.workspace.peak_bytes * 2 == one.workspace.peak_bytes > 0
    assert two.workspace.kept_bytes == one.workspace.kept_bytes


def test_layers_and_the_cards_maker() -> None:
    """Every recorded step runs all layers; an AMD card holds more outside the allocator."""
    shape, profile = shape_of("Qwen/Qwen3-8B"), find_profile("vllm@0.21")
    amd = engine_load(shape, profile, LIMITS, find_gpu("MI300X"))

    assert (amd.num_layers, amd.is_rocm) == (36, True)
    assert not engine_load(shape, profile, LIMITS, find_gpu("H100")).is_rocm


@pytest.mark.parametrize("engine", ["vllm@0.7", "sglang", "llama.cpp"])
def test_the_workspace_is_the_second_engines(engine: str) -> None:
    """Others have no buffer for contexts."""
    shape = shape_of("deepseek-ai/DeepSeek-V2-Lite-Chat")

    assert engine_load(shape, find_profile(engine), LIMITS).workspace == NO_WORKSPACE


@pytest.mark.parametrize(
    ("gpu", "is_fast", "has_flash"),
    [
        ("H100", True, True),
        ("RTX 3090", False, True),
        ("V100 32GB SXM2", True, False),
        ("T4", False, False),
        ("MI300X", True, False),
        (None, True, False),
    ],
)
def test_what_the_card_decides(gpu: str | None, is_fast: bool, has_flash: bool) -> None:
    """Its link, and whether it is known to run FlashAttention."""
    card = None if gpu is None else find_gpu(gpu)
    load = engine_load(shape_of("Qwen/Qwen3-8B"), find_profile("vllm"), LIMITS, card)

    assert (load.has_fast_link, load.has_flash_attention) == (is_fast, has_flash)


@pytest.mark.parametrize(
    ("model", "sees"),
    [
        ("google/gemma-3-4b-it", True),
        ("microsoft/Phi-3.5-vision-instruct", True),
        ("Qwen/Qwen3-8B", False),
    ],
)
def test_models_with_a_tower_see_images(model: str, sees: bool) -> None:
    """Whether its parameters are counted or not."""
    assert engine_load(shape_of(model), find_profile("vllm"), LIMITS).sees_images is sees
