"""What weights take on a device, held against what vLLM logged after loading them."""

import pytest

from nanoserve.bench.boot_errors import read_configs
from nanoserve.plan.device_weights import allocated_bytes, device_weight_bytes, rope_bytes
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.quant_spec import find_weight_format
from nanoserve.spec.read_shape import read_model_shape
from nanoserve.units import GIB, MIB

CONFIGS = read_configs()


def shape_of(model: str) -> ModelShape:
    return read_model_shape(CONFIGS[model], "config.json")


@pytest.mark.parametrize(
    ("size", "taken"),
    [
        (259 * MIB, 260 * MIB),
        (260 * MIB, 260 * MIB),
        (24 * MIB + MIB // 2, 24 * MIB + MIB // 2),
        (9 * MIB + 5, 9 * MIB + 5),
        (10 * MIB + MIB, 12 * MIB),
    ],
)
def test_tensors_are_rounded_where_the_rest_is_small(size: int, taken: int) -> None:
    """From 10 MiB on, up to 1 MiB behind a tensor is not given to another."""
    assert allocated_bytes(size) == taken


@pytest.mark.parametrize(
    ("model", "logged"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 14.9888),
        ("Qwen/Qwen3-8B", 15.2683),
        ("Qwen/Qwen2.5-7B-Instruct", 14.2487),
        ("meta-llama/Llama-3.2-1B", 2.3185),
        ("microsoft/phi-1_5", 2.6419),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 29.301),
        ("Qwen/Qwen3.6-35B-A3B", 65.52),
        ("mistralai/Mistral-7B-Instruct-v0.3", 13.5084),
    ],
)
def test_weights_as_logged(model: str, logged: float) -> None:
    """VLLM's own figure, to four digits: parameters, rounding and the rotary table."""
    assert device_weight_bytes(shape_of(model), None) / GIB == pytest.approx(logged, rel=0.0001)


@pytest.mark.parametrize(
    ("model", "weight_format", "tp", "logged"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "fp8", 1, 67.7),
        ("openai/gpt-oss-20b", "mxfp4", 1, 13.7164),
        ("Qwen/Qwen2.5-7B-Instruct", "awq", 1, 5.2032),
        ("zai-org/GLM-4.7-NVFP4", "nvfp4", 4, 47.11),
    ],
)
def test_quantised_weights_as_logged(
    model: str, weight_format: str, tp: int, logged: float
) -> None:
    """Formats leave embeddings in 16 bits; experts in MXFP4 are padded to the kernels' tiles."""
    if model.startswith("openai"):
        stored = find_weight_format(weight_format).leave(
            frozenset({"attention", "mlp", "shared_experts"})
        )
    else:
        stored = find_weight_format(weight_format)

    size = device_weight_bytes(shape_of(model), stored, tp)
    assert size / GIB == pytest.approx(logged, rel=0.005)


def test_the_fattest_stage_decides() -> None:
    """Of 4 stages of Llama 3.1 8B the first holds the embedding, and more than a quarter."""
    shape = shape_of("meta-llama/Llama-3.1-8B-Instruct")

    whole, stage = device_weight_bytes(shape, None), device_weight_bytes(shape, None, pp=4)
    assert whole / 4 * 1.1 < stage < whole / 3


def test_a_rotary_table_has_the_longest_context() -> None:
    """131,072 positions of 128 values in 16 bits; a model without attention has none."""
    assert rope_bytes(shape_of("meta-llama/Llama-3.1-8B-Instruct")) == 32 * MIB
    assert rope_bytes(shape_of("deepseek-ai/DeepSeek-V2-Lite-Chat")) == 163_840 * 64 * 2
