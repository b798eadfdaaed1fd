"""GGUF metadata becomes a shape by way of the names that config.json has."""

from pathlib import Path
from typing import Any

import pytest
from gguf.constants import MODEL_ARCH_NAMES

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.gguf_file import GGUFFile, GGUFTensor, read_gguf
from nanoserve.spec.gguf_shape import ARCHITECTURES, model_shape_of_gguf
from nanoserve.spec.gguf_spec import spec_from_gguf
from nanoserve.spec.model_dir import resolve_model
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.param_count import count_parameters
from nanoserve.spec.spec_shape import shape_of_spec
from tests.shape_cases import DELTA, EXPERTS, LATENT, kinds_of, num_experts_of, tiny_shape

HEADER: dict[str, Any] = {
    "block_count": 4,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
HEADER_EXPERTS = {"expert_count": 8, "expert_used_count": 2}
HEADER_MOE = HEADER_EXPERTS | {"expert_feed_forward_length": 32}
HEADER_LATENT = {
    "attention.q_lora_rank": 24,
    "attention.kv_lora_rank": 32,
    "attention.head_count_kv": 1,
    "attention.key_length": 40,
    "attention.value_length": 32,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 16,
    "rope.dimension_count": 8,
    "leading_dense_block_count": 1,
}


def read(architecture: str, changes: dict[str, Any] | None = None, *names: str) -> ModelShape:
    """Read a header of an architecture with some keys changed and some tensors added."""
    values = {**HEADER, **(changes or {})}
    metadata = {f"{architecture}.{k}": v for k, v in values.items() if v is not None}
    tensors = ("token_embd.weight", "output.weight", *names)
    return model_shape_of_gguf(
        GGUFFile(
            Path("tiny.gguf"),
            metadata | {"general.architecture": architecture},
            {name: GGUFTensor(name, (128, 64), "F16", 0, 4) for name in tensors},
        )
    )


def test_a_llama_is_the_one_of_the_config() -> None:
    """The same sizes under other names are the same shape."""
    assert read("llama") == tiny_shape()


def test_the_default_model_has_its_parameters() -> None:
    """The real file's shape has SmolLM2-135M's parameters, as the spec of our decoder has."""
    file = read_gguf(resolve_model("smollm2").path)

    shape = model_shape_of_gguf(file)
    assert count_parameters(shape).total == 134_515_008
    assert shape.layers == shape_of_spec(spec_from_gguf(file)).layers


@pytest.mark.parametrize(
    ("changes", "model_type"),
    [({}, "llama"), (HEADER_EXPERTS, "mixtral"), ({"attention.sliding_window": 16}, "mistral")],
)
def test_llama_files_are_told_apart(changes: dict[str, Any], model_type: str) -> None:
    """With experts they are Mixtrals, with a window Mistrals; a window of 0 is none."""
    assert read("llama", {"attention.sliding_window": 0, **changes}).model_type == model_type


def test_tensors_say_what_the_metadata_does_not() -> None:
    """Biases and norms on q and k stand as tensors."""
    biased = read("llama", {}, "blk.0.attn_q.bias", "blk.0.ffn_down.bias")

    assert biased == tiny_shape(attention_bias=True, mlp_bias=True)


def test_qwen_experts() -> None:
    """Expert counts and widths have keys of their own."""
    shape = read("qwen3moe", HEADER_MOE | {"attention.key_length": 32})

    assert shape == tiny_shape("qwen3_moe", **EXPERTS, head_dim=32)


def test_blocks_that_guess_ahead_are_no_layers() -> None:
    """They are counted among the blocks, and taken out."""
    changes = HEADER_MOE | {"nextn_predict_layers": 1, "leading_dense_block_count": 1}

    assert num_experts_of(read("glm4moe", changes)) == [0, 8, 8]


def test_latent_attention_of_newer_files() -> None:
    """The unabsorbed widths stand beside the absorbed ones."""
    shape = read("deepseek2", HEADER_MOE | HEADER_LATENT)

    assert shape == tiny_shape("deepseek_v2", **LATENT, **EXPERTS, first_k_dense_replace=1)


def test_latent_attention_of_older_files() -> None:
    """Before, the widths stood under the plain keys; no rank of the query means none."""
    older = {
        "attention.q_lora_rank": None,
        "attention.key_length": 24,
        "attention.value_length": 16,
        "attention.key_length_mla": None,
        "attention.value_length_mla": None,
    }
    shape = read("deepseek2", HEADER_MOE | HEADER_LATENT | older)

    latent = LATENT | {"q_lora_rank": None}
    assert shape == tiny_shape("deepseek_v2", **latent, **EXPERTS, first_k_dense_replace=1)


def test_a_delta_net() -> None:
    """Qwen3-Next's recurrent widths stand under Mamba's keys."""
    changes = {
        "attention.key_length": 16,
        "expert_shared_feed_forward_length": 40,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 8,
        "ssm.group_count": 2,
        "ssm.time_step_rank": 4,
        "ssm.inner_size": 64,
    }
    shape = read("qwen3next", HEADER_MOE | changes)

    shared = {"shared_expert_intermediate_size": 40}
    assert shape == tiny_shape("qwen3_next", **DELTA, **EXPERTS, **shared)
    assert kinds_of(shape) == ["gated_delta_net"] * 3 + ["full"]


def test_a_value_per_layer_must_be_the_same_in_all() -> None:
    """A list of equal values is one value; a list of others is refused by its key."""
    assert read("llama", {"attention.head_count_kv": [2, 2, 2, 2]}) == tiny_shape()
    with pytest.raises(UnsupportedModelError, match=r"llama\.attention\.head_count_kv"):
        read("llama", {"attention.head_count_kv": [2, 0, 2, 2]})


@pytest.mark.parametrize(
    ("architecture", "changes", "match"),
    [
        ("rwkv7", {}, "architecture rwkv7"),
        ("gemma3", {"attention.shared_kv_layers": 2}, "shared_kv_layers"),
    ],
)
def test_what_is_not_known_is_refused(
    architecture: str, changes: dict[str, Any], match: str
) -> None:
    """An architecture or a key that changes the sizes is named."""
    with pytest.raises(UnsupportedModelError, match=match):
        read(architecture, changes)


def test_a_part_of_a_split_file_is_refused() -> None:
    """One part does not have all tensors."""
    metadata = {"general.architecture": "llama", "split.count": 3}
    with pytest.raises(UnsupportedModelError, match=r"split\.count"):
        model_shape_of_gguf(GGUFFile(Path("x.gguf"), metadata, {}))


@pytest.mark.parametrize(
    ("architecture", "changes", "match"),
    [
        ("deepseek2", HEADER_LATENT | {"rope.dimension_count": 24}, "rope.dimension_count 24"),
        ("qwen3next", {"ssm.inner_size": 65, "ssm.time_step_rank": 4}, "ssm.inner_size 65"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(
    architecture: str, changes: dict[str, Any], match: str
) -> None:
    """Widths that cannot be told apart or divided."""
    with pytest.raises(CorruptFileError, match=match):
        read(architecture, changes)


def test_a_file_without_an_embedding_is_refused() -> None:
    """Nothing else says how large the vocabulary is."""
    with pytest.raises(CorruptFileError, match="token_embd"):
        model_shape_of_gguf(GGUFFile(Path("x.gguf"), {"general.architecture": "llama"}, {}))


def test_architectures_are_spelled_as_llama_cpp_spells_them() -> None:
    """Every name is one that gguf-py writes."""
    assert set(ARCHITECTURES) <= set(MODEL_ARCH_NAMES.values())
