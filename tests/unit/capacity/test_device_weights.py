"""What weights take on a device, held against what vLLM logged after loading them."""

import pytest

from nanoserve.bench.boot_errors import read_configs
from nanoserve.capacity.device_weights import allocated_bytes, laid_out_bytes, rope_bytes
from nanoserve.capacity.rank_weights import heaviest_rank_bytes, rank_weights
from nanoserve.plan.sharding import stage_weights
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.quant_spec import FULL_PRECISION, find_weight_format
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
    size = heaviest_rank_bytes(shape_of(model), FULL_PRECISION)

    assert size / GIB == pytest.approx(logged, rel=0.0001)


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

    size = heaviest_rank_bytes(shape_of(model), stored, tp)
    assert size / GIB == pytest.approx(logged, rel=0.005)


def test_the_fattest_stage_decides() -> None:
    """Of 4 stages of Llama 3.1 8B the first holds the embedding, and more than a quarter."""
    shape = shape_of("meta-llama/Llama-3.1-8B-Instruct")

    whole = heaviest_rank_bytes(shape, FULL_PRECISION)
    stage = heaviest_rank_bytes(shape, FULL_PRECISION, pp=4)

    assert whole / 4 * 1.1 < stage < whole / 3


def test_a_rotary_table_has_the_longest_context() -> None:
    """131,072 positions of 128 values in 16 bits; a model without attention has none."""
    llama = shape_of("meta-llama/Llama-3.1-8B-Instruct")
    latent = shape_of("deepseek-ai/DeepSeek-V2-Lite-Chat")

    assert rope_bytes(llama.layers, 131_072) == 32 * MIB
    assert rope_bytes(latent.layers, 163_840) == 163_840 * 64 * 2
    assert rope_bytes((), 131_072) == 0


@pytest.mark.parametrize("name", ["awq", "fp8", "mxfp4", "nvfp4", "int8"])
@pytest.mark.parametrize(
    "model",
    [
        "deepseek-ai/DeepSeek-V3",
        "openai/gpt-oss-20b",
        "Qwen/Qwen3-30B-A3B",
        "google/gemma-3-27b-it",
    ],
)
def test_laying_out_only_adds(model: str, name: str) -> None:
    """Parameters and tensors are counted in the same formats: none is smaller than its sum."""
    shape, stored = shape_of(model), find_weight_format(name).leave(frozenset({"shared_experts"}))
    part = stage_weights(shape, 1)[0]
    plain = rank_weights(shape, stored)[0].weight_bytes.mid

    laid_out = laid_out_bytes(part, shape.hidden_size, stored)
    assert plain <= laid_out <= 1.25 * plain


def test_shared_experts_left_in_16_bits_are_laid_out_so() -> None:
    """The dense part beside experts keeps its bits in tensors, as it does among parameters."""
    shape, fp8 = shape_of("deepseek-ai/DeepSeek-V3"), find_weight_format("fp8")
    left = fp8.leave(frozenset({"shared_experts"}))
    part = stage_weights(shape, 1)[0]

    more = laid_out_bytes(part, shape.hidden_size, left)
    more -= laid_out_bytes(part, shape.hidden_size, fp8)
    shared = 58 * 3 * 7168 * 2048  # a byte more for each parameter, scales apart
    assert more == pytest.approx(shared, rel=0.01)


@pytest.mark.parametrize(
    ("model", "logged_gib"),
    [
        ("google/gemma-3-4b-it", 8.58),
        ("google/gemma-3-12b-it", 23.31),
        ("google/gemma-3-27b-it", 51.45),
    ],
)
def test_gemma_3_is_as_heavy_as_logged(model: str, logged_gib: float) -> None:
    """What vLLM logs of each size, rotary tables of eight times the context included."""
    found = heaviest_rank_bytes(shape_of(model), FULL_PRECISION) / GIB

    assert found == pytest.approx(logged_gib, abs=0.012)
