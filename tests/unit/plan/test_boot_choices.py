"""What the options leave open is decided, and explained where it may surprise."""

from dataclasses import replace

import pytest

from nanoserve.errors import OptionError
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_choices import choose
from nanoserve.plan.device_facts import DeviceFacts
from tests.plan_cases import CPU, GPU, SMOLLM2


def test_dtype_follows_the_hardware() -> None:
    """Auto is bfloat16 where it is native, and float32 with the reason elsewhere."""
    with_bf16 = choose(SMOLLM2, EngineOptions(), replace(CPU, has_native_bf16=True))
    without = choose(SMOLLM2, EngineOptions(), CPU)
    asked = choose(SMOLLM2, EngineOptions(dtype="bfloat16"), CPU)

    assert (with_bf16.dtype, without.dtype, asked.dtype) == ("bfloat16", "float32", "bfloat16")
    assert "no native bfloat16" in without.notes[0]
    assert (with_bf16.itemsize, without.itemsize) == (2, 4)


def test_context_is_clamped_to_the_models() -> None:
    """A context over the model's is clamped, and both numbers are said once."""
    choices = choose(SMOLLM2, EngineOptions(max_model_len=10_000), CPU)

    assert choices.max_model_len == 8192
    assert len([note for note in choices.notes if "10,000" in note and "8,192" in note]) == 1


def test_short_model_sets_the_default_context() -> None:
    """The default context is the model's where that is less than 2,048."""
    choices = choose(replace(SMOLLM2, max_position_embeddings=512), EngineOptions(), CPU)

    assert choices.max_model_len == 512
    assert not any("512" in note for note in choices.notes)


def test_budget_is_never_under_the_slots() -> None:
    """The default token budget grows with the slots, so every decode fits in one step."""
    choices = choose(SMOLLM2, EngineOptions(max_num_seqs=600, max_model_len=64), CPU)

    assert choices.token_budget == 600


@pytest.mark.parametrize(
    ("options", "on_cpu", "on_gpu"),
    [
        (EngineOptions(), "eager", "captured"),
        (EngineOptions(decode_mode="bucketed"), "bucketed", "bucketed"),
        (EngineOptions(cuda_graphs=False), "eager", "eager"),
        (EngineOptions(cuda_graphs=True, decode_mode="captured"), "captured", "captured"),
    ],
)
def test_decode_mode_is_one_setting(options: EngineOptions, on_cpu: str, on_gpu: str) -> None:
    """The graphs' flag is another word for two of its values; auto asks the device."""
    assert choose(SMOLLM2, options, CPU).decode_mode == on_cpu
    assert choose(SMOLLM2, options, GPU).decode_mode == on_gpu


def test_native_steps_are_captured_unless_told_otherwise() -> None:
    """A CPU whose decode steps can be recorded as native operators replays them."""
    modes = [
        choose(SMOLLM2, options, CPU, records_natively=True).decode_mode
        for options in (EngineOptions(), EngineOptions(decode_mode="eager"))
    ]

    assert modes == ["captured", "eager"]


@pytest.mark.parametrize(
    ("options", "on_cpu", "on_gpu"),
    [
        (EngineOptions(), "demand", "fill"),
        (EngineOptions(kv_pool="demand"), "demand", "demand"),
        (EngineOptions(kv_pool="fill", num_blocks=5), "num_blocks", "num_blocks"),
        (EngineOptions(kv_cache_bytes=5), "kv_cache_bytes", "kv_cache_bytes"),
    ],
)
def test_a_number_outranks_a_way_of_sizing(
    options: EngineOptions, on_cpu: str, on_gpu: str
) -> None:
    """A size that was asked for is kept; auto asks the device."""
    assert choose(SMOLLM2, options, CPU).sized_by == on_cpu
    assert choose(SMOLLM2, options, GPU).sized_by == on_gpu


@pytest.mark.parametrize(("device", "remedy"), [(CPU, "a C\\+\\+ compiler"), (GPU, "--device cpu")])
def test_quantised_weights_need_native_operators(device: DeviceFacts, remedy: str) -> None:
    """Nothing else reads them: the refusal says what would."""
    options = EngineOptions(quantization="int8")

    with pytest.raises(OptionError, match=remedy):
        choose(SMOLLM2, options, device)
    assert choose(SMOLLM2, options, replace(CPU, has_native_ops=True)).dtype == "float32"
