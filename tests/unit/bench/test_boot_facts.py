"""What people write in a record, read."""

from typing import Any

import pytest

from nanoserve.bench.boot_facts import (
    UnsupportedRecordError,
    gpu_of_record,
    has_own_budget,
    is_divided,
    is_on_rocm,
    profile_of_record,
    version_of_record,
    weight_format_of,
)
from nanoserve.spec.quant_spec import WeightFormat
from nanoserve.spec.read_shape import read_model_shape

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.6.4-ish (2024-12, V0)", (0, 6, 4)),
        ("~0.8/0.9 V0", (0, 7)),
        ("0.6.5-0.6.6 V0", (0, 6, 5)),
        ("0.16 V1", (0, 8, 4)),
        ("0.17.1", (0, 17)),
        ("0.18-0.19 V1", (0, 18)),
        ("0.21+ (V1)", (0, 21)),
        ("0.24+ V1, model runner v2, 2026-08", (0, 24)),
        ("main 2024-07-03 (0.5.0.post1+)", (0, 2, 5)),
        ("V1 2025-26", (0, 8, 4)),
        ("0.1.dev20051 (2026)", (0, 24)),
        ("V1 2026", (0, 24)),
        ("dev 2023-12", (0, 2, 5)),
        ("0.2.7-0.3.0 2024-02", (0, 2, 5)),
    ],
)
def test_versions_as_people_write_them(version: str, since: tuple[int, ...]) -> None:
    """The release decides, then the month or year; V0 is at most the last engine before 0.8."""
    record = {"engine": "vllm", "engine_version": version}

    assert profile_of_record(record).since == since


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.17-0.20 2026", (0, 20)),
        ("2025-07", (0, 10)),
        ("2023-01", None),
        ("V1 2026", None),
        ("0.10.2/0.11 V1 2025-09", (0, 10, 2)),
        ("0.11.0rc2.dev12+g1a2b3c", (0, 11, 0)),
        ("vllm/vllm-openai:v0.8.5.post1", (0, 8, 5)),
        ("\u22650.9.2", (0, 9, 2)),
        ("0.8.4;V1", (0, 8, 4)),
        ("nightly", None),
        (None, None),
        ("", None),
    ],
)
def test_releases(version: str | None, numbers: tuple[int, ...] | None) -> None:
    """Of a range the end counts; what names no release and no known month is none."""
    assert version_of_record({"engine": "vllm", "engine_version": version}) == numbers


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("RTX 3090 24GB", "RTX 3090"),
        ("2x L4 24GB (GKE example)", "L4"),
        ("H200 141GB class", "H200"),
        ("A100 40GB (Colab, inferred)", "A100 40GB"),
        ("A100 (40 GB)", "A100 40GB"),
        ("8\u00d7H100", "H100 SXM"),
        ("8 GPUs H100 80GB", "H100 SXM"),
        ("H800 80GB", "H100 SXM"),
        ("2 x RTX 3090", "RTX 3090"),
        ("24GB class", None),
        ("8GB card", None),
        ("", None),
        (None, None),
    ],
)
def test_cards(name: str | None, gpu: str | None) -> None:
    """A name of the table is found in what people add to it; a size alone is no card."""
    found = gpu_of_record({"gpu": {"name": name}})

    assert (found and found.name) == gpu


@pytest.mark.parametrize(
    ("record", "name", "assumed"),
    [
        ({"quantization": "bitsandbytes 4bit"}, "bnb-4bit", ()),
        (
            {"quantization": "bitsandbytes 4bit", "engine_version": "0.7 via unsloth"},
            "bnb-4bit-double",
            (),
        ),
        ({"quantization": "fp8 block"}, "fp8-block-128x128", ()),
        ({"quantization": "4bit"}, "packed-int4-g128", ("weight format",)),
        ({"model": "Llama AWQ 4bit"}, "awq-int4-g128", ()),
        ({"model": "Llama fp8 KV"}, None, ()),
        ({"model": "Llama"}, None, ()),
    ],
)
def test_formats(record: dict[str, Any], name: str | None, assumed: tuple[str, ...]) -> None:
    """The quantisation's words decide, then the model's; fp8 of the KV cache is not the weights'."""
    found, notes = weight_format_of(record, read_model_shape(LLAMA, "config.json"))

    assert isinstance(found, WeightFormat | None)
    expected = {"fp8-block-128x128": "fp8-block-128"}.get(name or "", name)
    assert (found and found.name) == expected
    assert notes == assumed


def test_a_checkpoints_own_format_goes_before_words() -> None:
    """Groups of 32 in the config, not the usual 128, where both are of 4 bits."""
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 32}
    shape = read_model_shape(LLAMA | {"quantization_config": quantization}, "config.json")
    found, _ = weight_format_of({"quantization": "int4"}, shape)

    assert isinstance(found, WeightFormat)
    assert found.group_size == 32


def test_formats_that_cannot_be_sized_are_refused_by_name() -> None:
    """The error is kept: tokens of the cache do not need the weights."""
    shape = read_model_shape(LLAMA, "config.json")
    found, _ = weight_format_of({"quantization": "EXL3 3bpw"}, shape)

    assert isinstance(found, UnsupportedRecordError)
    assert "exl3" in str(found)


@pytest.mark.parametrize(
    ("record", "known"),
    [
        ({"tensor_parallel": 2}, True),
        ({"num_gpus": 1}, True),
        ({}, False),
        ({"tensor_parallel": 8, "data_parallel": 8}, False),
        ({"tensor_parallel": 8, "expert_parallel": 1}, True),
    ],
)
def test_how_gpus_divide_a_model(record: dict[str, Any], known: bool) -> None:
    """Data-parallel ranks share in ways a record does not say."""
    assert is_divided(record) is known


@pytest.mark.parametrize(
    ("version", "card", "is_rocm"),
    [
        ("0.8.5 V0 ROCm 2025-12", "16GB card", True),
        ("0.8.5", "AMD 16GB", True),
        ("0.11", "MI300X (8x)", True),
        ("0.11", "Radeon 890M iGPU", True),
        ("0.11", "RTX 4090", False),
        (None, None, False),
    ],
)
def test_amd_cards(version: str | None, card: str | None, is_rocm: bool) -> None:
    """The release or the card says so."""
    assert is_on_rocm({"engine_version": version, "gpu": {"name": card}}) is is_rocm


@pytest.mark.parametrize(
    ("engine", "version", "is_own"),
    [
        ("vllm-kunlun", "2026-04", True),
        ("vllm", "TPU 2025-07", True),
        ("vllm", "0.9.2 + kvcached 2025-09", True),
        ("vllm-ascend", "0.21", False),
        ("vllm", "0.11", False),
    ],
)
def test_budgets_of_their_own(engine: str, version: str, is_own: bool) -> None:
    """Forks and devices that size the pool otherwise are told by their names."""
    assert has_own_budget({"engine": engine, "engine_version": version}) is is_own


def test_ascend_has_rules_of_its_own() -> None:
    """No estimate of recorded steps comes off there."""
    record = {"engine": "vllm-ascend", "engine_version": "0.21-ish 2026-05"}

    assert profile_of_record(record).graphs == "outside"
    assert profile_of_record(record | {"engine": "vllm"}).graphs == "estimate in budget"
