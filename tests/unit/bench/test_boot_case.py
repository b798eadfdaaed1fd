"""Records with their model's shape."""

from typing import Any

import pytest

from nanoserve.bench.boot_case import BootCase, read_case
from nanoserve.bench.boot_errors import read_configs
from nanoserve.bench.boot_facts import UnsupportedRecordError
from nanoserve.units import GIB

CONFIGS = read_configs()
RECORD: dict[str, Any] = {
    "id": 1,
    "engine": "vllm",
    "engine_version": "0.11 V1",
    "config_ref": "Qwen/Qwen3-8B",
    "tensor_parallel": 1,
    "gpu": {"name": "RTX 4090", "mem_gib": 23.5},
    "gpu_memory_utilization": 0.9,
    "max_model_len": 4096,
}


def case_of(**changes: Any) -> BootCase:
    return read_case(RECORD | changes, CONFIGS)


def test_a_record_that_states_all() -> None:
    """Nothing is assumed; the engine's defaults are a small card's."""
    case = case_of()
    load = case.load()

    assert case.assumed == ()
    assert case.total_bytes == round(23.5 * GIB)
    assert (load.max_num_seqs, load.max_num_batched_tokens) == (256, 2048)
    assert (load.vocab_size, load.hidden_size) == (151_936, 4096)
    assert not load.has_fast_link


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"gpu_memory_utilization": None}, ("utilization",)),
        ({"gmu_source": "assumed default (not in log)"}, ("utilization",)),
        ({"gpu": {"name": "RTX 4090"}}, ("memory",)),
        ({"max_model_len": None}, ()),
        ({"max_model_len": None, "engine_version": "0.6.2"}, ("length",)),
        ({"gpu": {"name": "DGX Spark GB10", "mem_gib": 121.7}}, ("unified memory",)),
        ({"quantization": "4bit"}, ("weight format",)),
    ],
)
def test_what_is_not_stated_is_said(changes: dict[str, Any], facts: tuple[str, ...]) -> None:
    """The length matters only to an engine that profiles a whole prompt."""
    assert case_of(**changes).assumed == facts


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"config_ref": None, "model": "Qwen9"}, "model not known"),
        ({"config_ref": "nobody/nothing"}, "no config for the model"),
        ({"engine": "pegainfer"}, "engine not known"),
        ({"memory_scope": "sum of 4 GPUs"}, "figures not of one GPU"),
        ({"config_ref": "deepseek-ai/DeepSeek-V4-Flash-0731"}, "shape not supported"),
    ],
)
def test_what_cannot_be_resolved_is_refused_by_name(changes: dict[str, Any], kind: str) -> None:
    """The kind is counted, the detail names it."""
    with pytest.raises(UnsupportedRecordError) as caught:
        case_of(**changes)

    assert caught.value.kind == kind


def test_a_model_is_found_by_its_name() -> None:
    """With what people add in brackets, where the record refers to no config."""
    case = case_of(config_ref=None, model="Qwen/Qwen3-8B (inferred)")

    assert case.shape.hidden_size == 4096


@pytest.mark.parametrize(
    "changes",
    [
        {"config_ref": "qwen/qwen3-8b"},
        {"config_ref": "Qwen3-8B"},
        {"config_ref": None, "model": "qwen3-8b (inferred)"},
        {"config_ref": "some/copy", "model": "Qwen/Qwen3-8B"},
    ],
)
def test_a_model_is_found_in_other_spellings(changes: dict[str, Any]) -> None:
    """Without its owner, in small letters, or by its name where the config's is not known."""
    assert case_of(**changes).shape == case_of().shape


def test_a_name_that_two_models_share_is_none() -> None:
    """Nothing is picked among them."""
    configs = dict.fromkeys(("a/one", "b/One"), CONFIGS["Qwen/Qwen3-8B"])

    with pytest.raises(UnsupportedRecordError, match="one"):
        read_case(RECORD | {"config_ref": "one"}, configs)


def test_a_checkpoint_says_how_keys_and_values_are_kept() -> None:
    """ModelOpt's ask for fp8, in either of two keys; others keep the model's type."""
    assert case_of().kv_cache_dtype == "auto"
    assert case_of(config_ref="nvidia/Qwen3-235B-A22B-NVFP4").kv_cache_dtype == "fp8"
    assert case_of(config_ref="nvidia/Qwen3.6-27B-NVFP4").kv_cache_dtype == "fp8"
    assert case_of(kv_cache_dtype="fp8_e5m2").kv_cache_dtype == "fp8_e5m2"


@pytest.mark.parametrize(
    ("version", "quantization", "experts"),
    [("0.2.7", None, 1), ("0.4.0", None, 2), ("0.4.0", "gptq", 1), ("0.6.0", "gptq", 2)],
)
def test_experts_once_ran_in_turn(version: str, quantization: str | None, experts: int) -> None:
    """Mixtral's two experts of a token take their width together only since they are fused."""
    case = case_of(
        config_ref="mistralai/Mixtral-8x7B-v0.1",
        engine_version=version,
        quantization=quantization,
    )

    assert case.load().active_intermediate_size == experts * 14_336


def test_a_card_nobody_named_is_as_large_as_what_it_holds() -> None:
    """60 GiB of weights and 20 of pool are on a large card, with its slots."""
    case = case_of(gpu={}, weights_gib=60.0, kv_cache_gib=20.0)

    assert case.total_bytes is None
    assert case.load().max_num_seqs == 1024
