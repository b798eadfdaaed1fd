"""Parameter counts of published models, by group."""

from dataclasses import replace

import pytest

from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.param_count import count_parameters

LLAMA_3_1_8B = ModelSpec("llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072)
QWEN2_5_0_5B = ModelSpec(
    "qwen2", 24, 896, 14, 2, 64, 4864, 151936, 32768, has_qkv_bias=True, tie_word_embeddings=True
)
QWEN3_8B = ModelSpec("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960, has_qk_norm=True)
MISTRAL_7B = ModelSpec("mistral", 32, 4096, 32, 8, 128, 14336, 32000, 32768)
SMOLLM2_135M = ModelSpec("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, tie_word_embeddings=True)


@pytest.mark.parametrize(
    ("spec", "total"),
    [
        (LLAMA_3_1_8B, 8_030_261_248),
        (QWEN2_5_0_5B, 494_032_768),
        (QWEN3_8B, 8_190_735_360),
        (MISTRAL_7B, 7_241_732_096),
        (SMOLLM2_135M, 134_515_008),
    ],
)
def test_totals_are_the_published_ones(spec: ModelSpec, total: int) -> None:
    """Totals equal those transformers counts on the meta device."""
    assert count_parameters(spec).total == total


def test_groups_of_llama_3_1_8b() -> None:
    """Worked by hand: 32 layers, hidden 4096, q 4096, kv 1024, MLP 14336, vocabulary 128256."""
    count = count_parameters(LLAMA_3_1_8B)

    assert count.embedding == count.head == 128256 * 4096
    assert count.attention == 32 * 4096 * (4096 + 1024 + 1024 + 4096)
    assert count.mlp == 32 * 3 * 4096 * 14336
    assert count.norms == 32 * 2 * 4096 + 4096


def test_a_tied_head_counts_once() -> None:
    """Tying takes the head out and nothing else."""
    untied = replace(SMOLLM2_135M, tie_word_embeddings=False)

    assert count_parameters(SMOLLM2_135M).head == 0
    assert count_parameters(untied).total - count_parameters(SMOLLM2_135M).total == 49152 * 576


def test_each_bias_is_counted() -> None:
    """Biases add their rows per layer."""
    spec = replace(SMOLLM2_135M, has_output_bias=True, has_mlp_bias=True)
    plain = count_parameters(SMOLLM2_135M)

    assert count_parameters(spec).attention - plain.attention == 30 * 576
    assert count_parameters(spec).mlp - plain.mlp == 30 * (2 * 1536 + 576)
