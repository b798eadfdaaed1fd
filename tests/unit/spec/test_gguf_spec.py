"""GGUF metadata becomes a spec, or is refused by the key that blocks it."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.gguf_file import GGUFFile, GGUFTensor, read_gguf
from nanoserve.spec.gguf_spec import spec_from_gguf
from nanoserve.spec.model_dir import resolve_model
from nanoserve.spec.model_spec import ModelSpec, RopeScaling
from nanoserve.spec.param_count import count_parameters

LLAMA: dict[str, Any] = {
    "block_count": 2,
    "context_length": 4096,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
SPEC = ModelSpec("llama", 2, 64, 4, 2, 16, 96, 40, 4096, tie_word_embeddings=True)


def tensor(name: str, *shape: int, type_name: str = "F32", num_bytes: int = 4) -> GGUFTensor:
    return GGUFTensor(name, shape, type_name, 0, num_bytes)


def read(
    changes: dict[str, Any] | None = None,
    tensors: tuple[GGUFTensor, ...] = (),
    architecture: str = "llama",
    path: Path = Path("tiny.gguf"),
) -> ModelSpec:
    """Read the tiny Llama's header with some keys changed and some tensors added."""
    values = {**LLAMA, **(changes or {})}
    metadata: dict[str, Any] = {f"{architecture}.{key}": value for key, value in values.items()}
    metadata["general.architecture"] = architecture
    listed = (tensor("token_embd.weight", 40, 64), *tensors)
    return spec_from_gguf(GGUFFile(path, metadata, {each.name: each for each in listed}))


def test_a_minimal_header_is_enough() -> None:
    """What is absent is derived: head width, vocabulary, tie, theta."""
    assert read() == SPEC


def test_the_default_model_is_smollm2() -> None:
    """The spec read from the real file has SmolLM2-135M's parameters."""
    spec = spec_from_gguf(read_gguf(resolve_model("smollm2").path))

    assert count_parameters(spec).total == 134_515_008
    assert (spec.rope_theta, spec.tie_word_embeddings) == (100000.0, True)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (9, 3, 64)


def test_tensors_say_what_the_metadata_does_not() -> None:
    """An output head unties; bias tensors say which projections have one."""
    spec = read(
        tensors=(
            tensor("output.weight", 40, 64),
            tensor("blk.0.attn_q.bias", 64),
            tensor("blk.0.attn_output.bias", 64),
            tensor("blk.0.ffn_down.bias", 64),
        )
    )

    assert not spec.tie_word_embeddings
    assert (spec.has_qkv_bias, spec.has_output_bias, spec.has_mlp_bias) == (True, True, True)


def test_qwen_families_have_their_marks() -> None:
    """Qwen2 has q, k, v bias; Qwen3 norms its heads."""
    qwen2, qwen3 = read(architecture="qwen2"), read(architecture="qwen3")

    assert (qwen2.has_qkv_bias, qwen2.has_qk_norm) == (True, False)
    assert (qwen3.has_qkv_bias, qwen3.has_qk_norm) == (False, True)


def test_the_head_width_is_read_before_it_is_derived() -> None:
    """`attention.key_length` counts first, then `rope.dimension_count`."""
    assert read({"attention.key_length": 32}).head_dim == 32
    assert read({"rope.dimension_count": 8}).head_dim == 8
    assert read({"attention.key_length": 32, "attention.value_length": 32}).head_dim == 32


def test_sizes_per_layer_must_agree() -> None:
    """A list of equal sizes is one size; a list of unequal ones is refused by key."""
    assert read({"attention.head_count_kv": [2, 2]}).num_kv_heads == 2
    with pytest.raises(UnsupportedModelError, match="feed_forward_length"):
        read({"feed_forward_length": [96, 128]})
    with pytest.raises(CorruptFileError, match="head_count"):
        read({"attention.head_count": []})


def test_kv_heads_are_query_heads_where_absent() -> None:
    """Files from before grouped heads have no `head_count_kv`."""
    assert read({"attention.head_count_kv": None}).num_kv_heads == 4


def test_a_window_is_read_and_zero_is_none() -> None:
    """`attention.sliding_window` of 0 means every layer attends to everything."""
    assert read({"attention.sliding_window": 1024}).sliding_window == 1024
    assert read({"attention.sliding_window": 0}).sliding_window is None


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"rope.scaling.type": "none"}, None),
        ({"rope.scale_linear": 2.0}, RopeScaling("linear", 2.0)),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, RopeScaling("linear", 4.0)),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 1024,
            },
            RopeScaling("yarn", 4.0, 1024),
        ),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 1.0,
                "rope.scaling.attn_factor": 2.0,
            },
            RopeScaling("yarn", 1.0, 4096, attention_factor=2.0),
        ),
    ],
)
def test_rope_scaling_keys_are_read(keys: dict[str, Any], scaling: RopeScaling | None) -> None:
    """Each kind llama.cpp writes becomes the same scaling a config.json gives."""
    assert read(keys).rope_scaling == scaling


def test_a_yarn_attention_factor_multiplies_the_derived_one() -> None:
    """llama.cpp's attn_factor comes on top of 0.1 ln(factor) + 1."""
    keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.attn_factor": 0.5,
    }

    scaling = read(keys).rope_scaling

    assert scaling is not None
    assert scaling.attention_factor == pytest.approx(0.5693147)


def test_yarn_stretches_the_context() -> None:
    """The context is the original one times the factor, where that is longer."""
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}

    assert read(keys).max_position_embeddings == 16384


def test_frequency_factors_are_read_from_their_tensor(tmp_path: Path) -> None:
    """`rope_freqs.weight`, in which llama3 scaling is stored, becomes divisors."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(struct.pack("<8f", *[1.0] * 6, 2.5, 8.0))

    spec = read(tensors=(tensor("rope_freqs.weight", 8, num_bytes=32),), path=path)

    assert spec.rope_freq_factors == (*[1.0] * 6, 2.5, 8.0)
    assert spec.rope_scaling is None


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_frequency_factors_are_refused(tmp_path: Path, bad: float) -> None:
    """A divisor must be a positive number."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(struct.pack("<8f", *[1.0] * 7, bad))

    with pytest.raises(CorruptFileError, match="not a positive number"):
        read(tensors=(tensor("rope_freqs.weight", 8, num_bytes=32),), path=path)


def test_frequency_factors_must_fit_the_head_and_stand_alone() -> None:
    """One divisor per rotated pair, and no scaling keys beside them."""
    with pytest.raises(CorruptFileError, match=r"not \(8,\)"):
        read(tensors=(tensor("rope_freqs.weight", 9),))
    with pytest.raises(UnsupportedModelError, match="both"):
        read({"rope.scale_linear": 2.0}, (tensor("rope_freqs.weight", 8),))


@pytest.mark.parametrize("architecture", ["gemma2", "phi3", "qwen3moe"])
def test_other_architectures_are_refused_by_name(architecture: str) -> None:
    """An unknown architecture is named, with the known ones."""
    with pytest.raises(UnsupportedModelError, match=architecture) as caught:
        read(architecture=architecture)

    assert caught.value.known == ("llama", "qwen2", "qwen3")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8),
        ("logit_scale", 0.5),
        ("rope.scaling.type", "longrope"),
        ("attention.value_length", 8),
        ("rope.dimension_count", 8),
    ],
)
def test_unsupported_values_are_refused_by_key(key: str, value: Any) -> None:
    """Mixtral says llama too, but has experts: refused, as are scales and partial rotation."""
    with pytest.raises(UnsupportedModelError, match=key):
        read({"attention.key_length": 16, key: value})


def test_a_part_of_a_split_file_is_refused() -> None:
    """One part has not all tensors; the error says how to join them."""
    metadata = {"general.architecture": "llama", "split.count": 3}

    with pytest.raises(UnsupportedModelError, match=r"split\.count = 3: join the parts"):
        spec_from_gguf(GGUFFile(Path("f-00001-of-00003.gguf"), metadata, {}))


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("block_count is missing", {"block_count": None}),
        ("block_count", {"block_count": 0}),
        ("layer_norm_rms_epsilon", {"attention.layer_norm_rms_epsilon": float("nan")}),
        ("not a multiple of head_count_kv", {"attention.head_count_kv": 3}),
        ("not a multiple of head_count 4", {"embedding_length": 66}),
        ("odd", {"attention.key_length": 15}),
        ("vocab_size", {"vocab_size": 41}),
        ("rope.scaling.type", {"rope.scaling.type": 3}),
    ],
)
def test_impossible_values_are_refused_by_key(match: str, changes: dict[str, Any]) -> None:
    """Missing, wrong and contradictory values name their key."""
    with pytest.raises(CorruptFileError, match=match):
        read(changes)


def test_a_file_without_an_embedding_is_refused() -> None:
    """The vocabulary is the embedding's rows, so there must be one."""
    metadata = {f"llama.{key}": value for key, value in LLAMA.items()}
    metadata["general.architecture"] = "llama"

    with pytest.raises(CorruptFileError, match="no tensor token_embd"):
        spec_from_gguf(GGUFFile(Path("f.gguf"), metadata, {}))


@pytest.mark.parametrize(
    ("type_name", "dtype"),
    [("F16", "float16"), ("BF16", "bfloat16"), ("F32", "float32"), ("Q4_K", "float32")],
)
def test_the_dtype_is_that_of_most_bytes(type_name: str, dtype: str) -> None:
    """Norms are float32 in every file; the matrices decide."""
    big = tensor("output.weight", 40, 64, type_name=type_name, num_bytes=9999)

    expected = replace(SPEC, torch_dtype=dtype, tie_word_embeddings=False)
    assert read(tensors=(big,)) == expected
