"""True bits per weight; the golden table is the package's own, row by row."""

import pytest

from nanoserve.errors import UnsupportedModelError
from nanoserve.spec.ggml_types import GGML_TYPES
from nanoserve.spec.quant_spec import (
    FULL_PRECISION,
    WeightFormat,
    file_bits_format,
    find_weight_format,
    gguf_file_formats,
    gptq_format,
    grouped_format,
    quant_rows,
)
from nanoserve.units import GIB

LLAMA_31_8B = {
    "embedding": 128256 * 4096,
    "head": 128256 * 4096,
    "attention": 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024),
    "mlp": 32 * 3 * 4096 * 14336,
    "norms": 65 * 4096,
}
LLAMA_3_70B = {
    "embedding": 128256 * 8192,
    "head": 128256 * 8192,
    "attention": 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024),
    "mlp": 80 * 3 * 8192 * 28672,
    "norms": 161 * 8192,
}
FORMATS = {
    "bf16/fp16": FULL_PRECISION,
    "fp8 per-tensor": find_weight_format("fp8"),
    "fp8 per-channel (compressed-tensors W8A8-FP8 dynamic)": find_weight_format("fp8-channel"),
    "fp8 block 128x128 (DeepSeek)": find_weight_format("fp8-block"),
    "int8 W8A8 per-channel": find_weight_format("int8"),
    "bnb LLM.int8": find_weight_format("bnb-int8"),
    "bnb nf4 (blocksize 64, no double quant)": find_weight_format("nf4"),
    "bnb nf4 double quant": find_weight_format("bnb-4bit-double"),
    "AWQ int4 g128 (zero point)": find_weight_format("awq"),
    "AWQ int4 g64": grouped_format("awq", 4, 64, zero_bits=4),
    "AWQ int4 g32": grouped_format("awq", 4, 32, zero_bits=4),
    "GPTQ int4 g128 sym/asym (checkpoint)": find_weight_format("gptq"),
    "GPTQ int4 g-1 (per channel)": gptq_format(4, -1),
    "GPTQ int8 g128": find_weight_format("gptq-int8"),
    "compressed-tensors W4A16 sym g128": find_weight_format("int4"),
    "MXFP4 (OCP; gpt-oss experts)": find_weight_format("mxfp4"),
    "NVFP4 (block 16 e4m3 + fp32 global)": find_weight_format("nvfp4"),
    "MXFP8 (block 32)": find_weight_format("mxfp8"),
    "HQQ int4 g64": find_weight_format("hqq"),
    "EXL2/EXL3": file_bits_format("exl", 4.0),
}
ROWS = {row["format"]: row for row in quant_rows()}
WHOLE_FORMATS = [name for name, row in ROWS.items() if row["llama3_70b_GiB"]]


def test_the_models_have_their_parameters() -> None:
    """The groups add up to the published counts."""
    assert sum(LLAMA_31_8B.values()) == 8_030_261_248
    assert sum(LLAMA_3_70B.values()) == 70_553_706_496


@pytest.mark.parametrize("name", WHOLE_FORMATS)
def test_bits_and_bytes_of_every_row(name: str) -> None:
    """Every format's row reproduces: bits of a weight, bits overall and GiB of two models."""
    row, one = ROWS[name], FORMATS[name]

    assert one.bits_per_weight() == pytest.approx(float(row["bits_per_weight"]), abs=5.1e-5)
    assert one.effective_bits(LLAMA_31_8B) == pytest.approx(
        float(row["llama31_8b_effective_bpw"]), abs=5.1e-4
    )
    assert one.weight_bytes(LLAMA_31_8B) / GIB == pytest.approx(
        float(row["llama31_8b_GiB"]), abs=5.1e-4
    )
    assert one.weight_bytes(LLAMA_31_8B) / 1e9 == pytest.approx(
        float(row["llama31_8b_GB"]), abs=5.1e-3
    )
    assert one.effective_bits(LLAMA_3_70B) == pytest.approx(
        float(row["llama3_70b_effective_bpw"]), abs=5.1e-4
    )
    assert one.weight_bytes(LLAMA_3_70B) / GIB == pytest.approx(
        float(row["llama3_70b_GiB"]), abs=5.1e-3
    )


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("GGUF block ")])
def test_gguf_blocks_have_the_bits_of_their_structs(name: str) -> None:
    """The table of block structs gives the same bits a value."""
    block = name.removeprefix("GGUF block ").removeprefix("GGUF ")
    kind = next(one for one in GGML_TYPES.values() if one.name == block)

    assert 8 * kind.block_bytes / kind.block_values == float(ROWS[name]["bits_per_weight"])


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("GGUF file ")])
def test_gguf_files_weigh_what_was_measured(name: str) -> None:
    """A file type's bits are a whole file's: embeddings are no exception."""
    one = find_weight_format(name.removeprefix("GGUF file ").split()[0])

    measured = float(ROWS[name]["llama31_8b_GiB"])
    assert one.weight_bytes(LLAMA_31_8B) / GIB == pytest.approx(measured, abs=0.0101)
    assert one.is_estimate


def test_gguf_file_types_are_found_in_any_case() -> None:
    """`q4_k_m` is `Q4_K_M`; a file of one block type has its head in Q6_K."""
    assert find_weight_format("q4_k_m") is gguf_file_formats()["Q4_K_M"]
    assert find_weight_format("Q4_0").bits_per_weight() == 4.5
    assert find_weight_format("Q4_0").group_bits_per_weight("head") == 6.5625


def test_embedding_head_and_norms_stay_in_16_bits() -> None:
    """A format of linear layers leaves everything else alone."""
    awq = find_weight_format("awq")

    left = ("embedding", "head", "norms", "router", "vision", "other")
    assert {awq.group_bits_per_weight(group) for group in left} == {16}


def test_gpt_oss_quantises_experts_alone() -> None:
    """MXFP4 with attention and the dense MLP left out costs more than its name says."""
    experts_only = find_weight_format("mxfp4").leave(frozenset({"attention", "mlp"}))

    assert experts_only.group_bits_per_weight("experts") == 4.25
    assert experts_only.group_bits_per_weight("attention") == 16


def test_sides_of_a_layer_matter_to_scales_of_a_row() -> None:
    """A scale for each output weighs more where the layer is narrow."""
    channel = find_weight_format("fp8-channel")

    assert channel.bits_per_weight(in_features=1024) == 8 + 32 / 1024


def test_a_model_without_parameters_takes_nothing() -> None:
    """Nothing is divided by zero."""
    assert FULL_PRECISION.weight_bytes({}) == 0
    assert FULL_PRECISION.effective_bits({}) == 16


def test_bytes_round_up() -> None:
    """Three weights of 4 bits take two bytes."""
    four = WeightFormat("four", 4, "here")

    assert four.weight_bytes({"mlp": 3}) == 2


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    """The message lists what can be asked for."""
    with pytest.raises(UnsupportedModelError, match=r"'int3'.*awq.*Q4_K_M"):
        find_weight_format("int3")
