"""What engines take beside the weights, against boots that were measured."""

from dataclasses import replace
from typing import Any

import pytest

from nanoserve.capacity.engine_memory import (
    EngineLoad,
    activation_bytes,
    context_bytes,
    non_torch_bytes,
    pool_bytes,
    sglang_fraction,
    sglang_pool_bytes,
    step_tokens,
    tensorrt_pool_bytes,
    unsloth_slots,
)
from nanoserve.capacity.engine_profile import find_profile
from nanoserve.capacity.interval import Interval
from nanoserve.units import GIB

H100_BATCH: dict[str, Any] = {
    "max_num_seqs": 1024,
    "max_num_batched_tokens": 8192,
    "max_model_len": 8192,
}
V0_BATCH: dict[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}

# Peaks that vLLM logged on an H100 with 1,024 slots and 8,192 tokens a step, since 0.17.
# Source: llm-d's published accuracy report.
MEASURED = [
    ("Llama-3.1-8B", 128_256, 4096, 14336, 1.89),
    ("Qwen2.5-7B", 152_064, 3584, 18944, 2.21),
    ("phi-4", 100_352, 5120, 17920, 1.52),
    ("Gemma-7B", 256_000, 3072, 24576, 3.63),
    ("Gemma-2-9B", 256_000, 3584, 14336, 3.65),
    ("gpt-oss-20b", 201_088, 2880, 4 * 2880, 2.87),
    ("CodeLlama-7b", 32_016, 4096, 11008, 0.77),
    ("granite-3.1-8b", 49_155, 4096, 12800, 0.85),
    ("Mistral-Small-3.1-24B", 131_072, 5120, 32768, 2.03),
]
# The same of 0.11, which sorts the logits. Source: llm-d-benchmark, config_explorer.
MEASURED_SORTED = [
    ("Llama-3.1-8B", 128_256, 4096, 14336, 4.76),
    ("Qwen3-0.6B", 151_936, 1024, 3072, 5.56),
    ("Qwen3-32B", 151_936, 5120, 25600, 5.64),
    ("gpt-oss-20b", 201_088, 2880, 4 * 2880, 7.38),
]
# Peaks of the first engine, 256 slots; the length decides the step. Source: recorded boots.
MEASURED_V0 = [
    ("Llama-3.1-8B, one prompt of 29,000", 128_256, 4096, 14336, 29_000, 2.99),
    ("Qwen2.5-7B", 152_064, 3584, 18944, 4096, 1.42),
    ("Qwen2.5-1.5B", 151_936, 1536, 8960, 2048, 1.39),
    ("Qwen3-1.7B", 151_936, 2048, 6144, 40_960, 1.49),
    ("phi-1.5", 51_200, 2048, 8192, 2048, 0.48),
    ("Llama-3.2-1B", 128_256, 2048, 8192, 105_088, 1.17),
]


@pytest.mark.parametrize(
    ("version", "peak"),
    [("0.17", peak) for peak in MEASURED] + [("0.16", peak) for peak in MEASURED_SORTED],
)
def test_peaks_of_the_second_engine(version: str, peak: tuple[str, int, int, int, float]) -> None:
    """The copies of the logits decide to 1 %, and the MLP where the vocabulary is small."""
    name, vocab, hidden, mlp, measured = peak
    profile = find_profile(f"vllm@{version}")
    predicted = activation_bytes(profile, EngineLoad(vocab, hidden, mlp, **H100_BATCH))

    close = 0.012 if vocab > 100_000 and name != "Mistral-Small-3.1-24B" else 0.06
    assert predicted.mid / GIB == pytest.approx(measured, rel=close), name
    assert measured * GIB in predicted, name


@pytest.mark.parametrize(
    ("name", "vocab", "hidden", "experts", "width", "measured"),
    [
        ("Qwen3-30B-A3B", 151_936, 2048, 8, 768, 2.68),
        ("DeepSeek-V2-Lite", 102_400, 2048, 6, 1408, 1.93),
        ("Llama-4-Scout", 202_048, 5120, 1, 8192, 3.19),
    ],
)
def test_experts_keep_their_workspace(
    name: str, vocab: int, hidden: int, experts: int, width: int, measured: float
) -> None:
    """Since 0.17 the experts' caches of the largest step stay allocated while it samples."""
    values = experts * (max(2 * width, hidden) + width)
    load = EngineLoad(vocab, hidden, experts * width, **H100_BATCH, expert_values_per_token=values)

    predicted = activation_bytes(find_profile("vllm@0.17"), load)
    without = activation_bytes(find_profile("vllm@0.16"), load)
    assert predicted.mid / GIB == pytest.approx(measured, rel=0.06), name
    assert predicted.mid - without.mid < values * 8192 * 2


def test_an_image_is_profiled_too() -> None:
    """Where the sampler's batch is small, the encoder's largest image is the peak."""
    profile = find_profile("vllm@0.24")
    load = EngineLoad(151_936, 2048, 6144, 1, 2048, 4096, sees_images=True)

    assert activation_bytes(profile, load).mid == round(1.6 * GIB)
    assert 1.06 * GIB in activation_bytes(profile, load)


def test_no_more_rows_are_sampled_than_tokens() -> None:
    """A step of 512 tokens samples 512 rows, whatever the slots."""
    profile = find_profile("vllm@0.17")
    load = EngineLoad(128_256, 4096, 14336, 1024, 512, 4096)

    assert activation_bytes(profile, load) == activation_bytes(
        profile, EngineLoad(128_256, 4096, 14336, 512, 512, 4096)
    )


@pytest.mark.parametrize(("name", "vocab", "hidden", "mlp", "length", "measured"), MEASURED_V0)
def test_peaks_of_the_first_engine(
    name: str, vocab: int, hidden: int, mlp: int, length: int, measured: float
) -> None:
    """It kept more copies, and ran a whole prompt at once up to 32,768 tokens."""
    load = EngineLoad(vocab, hidden, mlp, max_model_len=length, **V0_BATCH)
    predicted = activation_bytes(find_profile("vllm@0.7"), load)

    assert predicted.mid / GIB == pytest.approx(measured, rel=0.07), name
    assert measured * GIB in predicted, name


def test_the_profiled_step() -> None:
    """One token budget where prompts are split, else the longest prompt."""
    load = EngineLoad(32_000, 4096, 11008, max_model_len=16_384, **V0_BATCH)

    assert step_tokens(find_profile("vllm@0.11"), load) == 2048
    assert step_tokens(find_profile("vllm@0.6"), load) == 16_384


@pytest.mark.parametrize(
    ("version", "length", "measured"), [("0.6.4", 35_000, 0.06), ("0.7", 131_072, 0.22)]
)
def test_the_first_engine_splits_long_prompts(version: str, length: int, measured: float) -> None:
    """Over 32,768 tokens the step is 512, since 0.7 2,048; with FlashAttention nothing is sampled."""
    load = EngineLoad(
        128_256, 4096, 14336, max_model_len=length, has_flash_attention=True, **V0_BATCH
    )
    profile = find_profile(f"vllm@{version}")

    assert activation_bytes(profile, load).mid / GIB == pytest.approx(measured, abs=0.02)
    without = activation_bytes(profile, replace(load, has_flash_attention=False))
    assert without.mid / GIB == pytest.approx(1.2, abs=0.05)


@pytest.mark.parametrize("version", ["0.2.0", "0.4.2", "0.5.3"])
def test_long_prompts_are_whole_until_they_are_split(version: str) -> None:
    """Prompts over 32,768 tokens are split since 0.5.4, none of a model with images."""
    load = EngineLoad(32_000, 4096, 11008, max_model_len=65_536, **V0_BATCH)

    assert step_tokens(find_profile(f"vllm@{version}"), load) == 65_536
    assert step_tokens(find_profile("vllm@0.5.4"), load) == 512
    assert step_tokens(find_profile("vllm@0.7"), load) == 2048
    assert step_tokens(find_profile("vllm@0.7"), replace(load, sees_images=True)) == 65_536


def test_several_gpus_hold_more_outside_the_allocator() -> None:
    """Communication takes 2 GiB of each card that shares layers, if their link is fast."""
    profile = find_profile("vllm@0.19")

    assert 0.26 * GIB in non_torch_bytes(profile)
    assert 2.1 * GIB in non_torch_bytes(profile, tensor_parallel=2)
    assert 0.05 * GIB not in non_torch_bytes(profile, tensor_parallel=2)
    assert 0.25 * GIB in non_torch_bytes(profile, tensor_parallel=2, has_fast_link=False)
    assert 0.55 * GIB in non_torch_bytes(find_profile("vllm@0.11"), tensor_parallel=2)


@pytest.mark.parametrize(
    ("version", "measured"), [("0.15", 0.13), ("0.17", 0.13), ("0.18", 0.25), ("0.19", 0.25)]
)
def test_one_gpu_holds_more_since_018(version: str, measured: float) -> None:
    """Qwen3 14B on an H100, booted with each of them. Source: llm-d's accuracy report."""
    held = non_torch_bytes(find_profile(f"vllm@{version}"))

    assert held.mid / GIB == pytest.approx(measured, abs=0.015)


@pytest.mark.parametrize(("version", "logged"), [("0.6.6", 0.11), ("0.6.4", 0.44), ("0.7.3", 0.05)])
def test_the_drivers_context_came_off_until_065(version: str, logged: float) -> None:
    """What 0.6.4 and 0.6.6 logged on cards of 8 and 16 GB; the context is not counted since."""
    held = non_torch_bytes(find_profile(f"vllm@{version}"))

    assert held.mid / GIB == pytest.approx(logged, abs=0.05)
    assert logged * GIB in held


@pytest.mark.parametrize("logged", [0.46, 0.53])
def test_hip_holds_more_of_a_lone_card(logged: float) -> None:
    """As 0.8.5 and 0.9 logged on Radeon cards; ranks that share a layer are as they are."""
    profile = find_profile("vllm@0.8.5")

    assert logged * GIB in non_torch_bytes(profile, is_rocm=True)
    assert non_torch_bytes(profile, is_rocm=True).mid / GIB == pytest.approx(logged, abs=0.1)
    assert non_torch_bytes(profile, 2, is_rocm=True) == non_torch_bytes(profile, 2)


@pytest.mark.parametrize(
    ("total", "logged"), [(79.19, 0.51), (44.42, 0.49), (22.06, 0.23), (14.74, 0.15)]
)
def test_the_drivers_context(total: float, logged: float) -> None:
    """What was gone of an H100, an L40S, an L4 and a T4 before anything was loaded."""
    assert context_bytes(int(total * GIB)) / GIB == pytest.approx(logged, abs=0.06)


def test_the_first_releases_took_off_what_the_allocator_held() -> None:
    """Before 0.2.5 neither context nor communication came off; from then on both did."""
    assert non_torch_bytes(find_profile("vllm@0.2.2"), tensor_parallel=8).mid == 0
    assert non_torch_bytes(find_profile("vllm@0.2.7"), tensor_parallel=8).mid > 3 * GIB


@pytest.mark.parametrize(("gib", "slots"), [(1, 128), (3.5, 160), (39, 320), (47, 226), (90, 400)])
def test_slots_that_unsloth_asks_for(gib: float, slots: int) -> None:
    """They follow from what is left beside the weights."""
    assert unsloth_slots(int(gib * GIB)) == slots


@pytest.mark.parametrize(
    ("version", "low", "pool"), [("0.19", 7, 7), ("0.21", 6, 6), ("0.24", 6, 7)]
)
def test_who_takes_the_estimate_off(version: str, low: int, pool: int) -> None:
    """From 0.21 the estimate comes out of the budget; from 0.24 on not with every runner."""
    left = pool_bytes(
        find_profile(f"vllm@{version}"),
        20 * GIB,
        10 * GIB,
        Interval.exactly(2 * GIB),
        Interval.exactly(GIB),
        Interval.exactly(GIB),
    )

    assert left == Interval(low * GIB, pool * GIB, pool * GIB)


def test_sglangs_pool_as_logged() -> None:
    """0.4.1 on an H100: 63.72 GiB left of 78.8 at 0.88 gave a pool of 54.26."""
    pool = sglang_pool_bytes(round(78.8 * GIB), round(63.72 * GIB), 0.88)

    assert pool / GIB == pytest.approx(54.26, abs=0.01)


@pytest.mark.parametrize(
    ("gib", "tensor_parallel", "share"),
    [
        (24, 1, (24 * 1024 - 512 - 3072 - 128 - 48) / (24 * 1024)),
        (24, 4, (24 * 1024 - 512 - 3072 - 512 - 160) / (24 * 1024)),
        (48, 1, (48 * 1024 - 512 - 6144 - 128 - 64) / (48 * 1024)),
        (80, 1, (80 * 1024 - 512 - 12_288 - 128 - 512) / (80 * 1024)),
        (180, 8, (180 * 1024 - 512 - 24_576 - 1024 - 1024) / (180 * 1024)),
    ],
)
def test_sglangs_share(gib: int, tensor_parallel: int, share: float) -> None:
    """Chunk and graph rows follow the card: a 4090 keeps 3.7 GiB back and not 13."""
    fraction = sglang_fraction(gib * GIB, tensor_parallel=tensor_parallel)

    assert fraction == round(share, 3)


def test_what_moves_sglangs_share() -> None:
    """A larger chunk and latent attention keep more back; a large card at least 10 GiB."""
    assert sglang_fraction(24 * GIB, 8192) == pytest.approx(0.47, abs=0.01)
    assert sglang_fraction(24 * GIB, is_mla=True) == 0.785
    assert sglang_fraction(80 * GIB, 2048) == 0.875
    assert sglang_fraction(GIB) == 0


def test_tensorrts_pool_as_logged() -> None:
    """17.83 GiB free at the default share of 0.9 gave a pool of 16.05."""
    pool = tensorrt_pool_bytes(find_profile("tensorrt-llm"), round(17.83 * GIB), None)

    assert pool / GIB == pytest.approx(16.05, abs=0.01)
    assert tensorrt_pool_bytes(find_profile("trt"), 10 * GIB, 0.5) == 5 * GIB
