"""config.json becomes a spec, in either spelling, or is refused by the key that blocks it."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoserve.errors import CorruptFileError, ModelError, UnsupportedModelError
from nanoserve.spec.hf_config import spec_from_hf_config
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.param_count import count_parameters

GOLDEN = Path(__file__).parents[2] / "golden" / "model_configs.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
SERVED = [row for row in ROWS if "parameters" in row and "quantization_config" not in row["config"]]
QUANTISED = [row for row in ROWS if "quantization_config" in row["config"]]
FOREIGN = [row for row in ROWS if "parameters" not in row]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}


def read(changes: dict[str, Any] | None = None, without: str = "") -> ModelSpec:
    """Read the Llama config with some keys changed, and one left out."""
    config = {**LLAMA, **(changes or {})}
    config.pop(without, None)
    return spec_from_hf_config(config, "config.json")


def read_family(name: str, changes: dict[str, Any] | None = None) -> ModelSpec:
    return read({"architectures": [f"{name}ForCausalLM"], **(changes or {})})


def test_every_field_of_llama_3_1_is_read() -> None:
    """The published config of Llama 3.1 8B, RoPE apart, gives this spec."""
    assert read() == ModelSpec(
        architecture="llama",
        num_layers=32,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocab_size=128256,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        torch_dtype="bfloat16",
    )


@pytest.mark.parametrize("row", SERVED, ids=lambda row: row["model"])
def test_real_configs_give_the_known_sizes(row: dict[str, Any]) -> None:
    """Parameters and KV bytes per token of published models come out of their configs."""
    spec = spec_from_hf_config(row["config"], row["model"])

    assert count_parameters(spec).total == row["parameters"]
    assert spec.num_layers * 2 * spec.kv_size * 2 == row["kv_bytes_per_token_bf16"]


@pytest.mark.parametrize("row", QUANTISED, ids=lambda row: row["model"])
def test_quantised_configs_are_refused(row: dict[str, Any]) -> None:
    """fp8, AWQ and bitsandbytes copies are refused by `quantization_config`."""
    with pytest.raises(UnsupportedModelError, match="quantization_config"):
        spec_from_hf_config(row["config"], row["model"])


@pytest.mark.parametrize("row", FOREIGN, ids=lambda row: row["model"])
def test_other_architectures_are_refused_by_name(row: dict[str, Any]) -> None:
    """An unknown architecture is named, and the known ones are listed."""
    with pytest.raises(UnsupportedModelError) as caught:
        spec_from_hf_config(row["config"], row["model"])

    assert row["config"]["architectures"][0] in caught.value.what
    assert "LlamaForCausalLM" in caught.value.known


def test_the_model_type_stands_in_for_absent_architectures() -> None:
    """A config without `architectures` is known by `model_type`."""
    assert read({"architectures": None, "model_type": "qwen3"}).architecture == "qwen3"
    with pytest.raises(UnsupportedModelError, match="mamba"):
        read({"architectures": None, "model_type": "mamba"})


@pytest.mark.parametrize("names", [[], ["LlamaForCausalLM", "X"], "LlamaForCausalLM", [3]])
def test_odd_architectures_are_refused(names: Any) -> None:
    """`architectures` must be a list of one name."""
    with pytest.raises(CorruptFileError, match="architectures"):
        read({"architectures": names})


def test_llama_biases_come_from_two_keys() -> None:
    """`attention_bias` is on q, k, v and o; `mlp_bias` on the three MLP projections."""
    with_attention, with_mlp = read({"attention_bias": True}), read({"mlp_bias": True})

    assert (with_attention.has_qkv_bias, with_attention.has_output_bias) == (True, True)
    assert not with_attention.has_mlp_bias
    assert with_mlp.has_mlp_bias
    assert not with_mlp.has_qkv_bias


def test_qwen2_has_bias_on_q_k_and_v_alone() -> None:
    """Qwen2's bias is in the architecture, not in a key."""
    spec = read_family("Qwen2")

    assert (spec.has_qkv_bias, spec.has_output_bias, spec.has_qk_norm) == (True, False, False)


def test_qwen3_norms_heads_and_has_its_own_head_dim() -> None:
    """Qwen3's head is 128 wide unless stated, whatever the hidden size."""
    spec = read_family("Qwen3", {"hidden_size": 1024})

    assert (spec.has_qk_norm, spec.head_dim, spec.has_qkv_bias) == (True, 128, False)
    assert read_family("Qwen3", {"head_dim": 64}).head_dim == 64


def test_a_null_head_count_is_one_kv_head_per_head() -> None:
    """Null, or absent for Llama, means no grouping."""
    assert read({"num_key_value_heads": None}).num_kv_heads == 32
    assert read(without="num_key_value_heads").num_kv_heads == 32


def test_mistral_slides_unless_told_not_to() -> None:
    """Mistral's window is 4096 where the key is absent, and none where it is null."""
    assert read_family("Mistral").sliding_window == 4096
    assert read_family("Mistral", {"sliding_window": 1024}).sliding_window == 1024
    assert read_family("Mistral", {"sliding_window": None}).sliding_window is None
    assert read({"sliding_window": 1024}).sliding_window is None  # Llama ignores the key


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 4096}, None),
        ({"use_sliding_window": True, "max_window_layers": 32}, None),
        ({"use_sliding_window": True, "max_window_layers": 99}, None),
        ({"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 512}, 512),
        ({"use_sliding_window": True, "layer_types": ["full_attention"] * 32}, None),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention"] * 32}, 4096),
    ],
)
def test_qwen_slides_in_all_layers_or_none(changes: dict[str, Any], window: int | None) -> None:
    """Qwen's window counts only where it is in use, from `max_window_layers` on."""
    assert read_family("Qwen2", changes).sliding_window == window
    assert read_family("Qwen3", changes).sliding_window == window


@pytest.mark.parametrize(
    ("family", "key", "changes"),
    [
        ("Qwen2", "use_sliding_window", {"use_sliding_window": True, "max_window_layers": 21}),
        ("Qwen2", "layer_types", {"use_sliding_window": True, "layer_types": ["chunked"] * 32}),
        ("Mistral", "layer_types", {"layer_types": ["full_attention"] * 32}),
        ("Llama", "hidden_act", {"hidden_act": "gelu"}),
        ("Llama", "pretraining_tp", {"pretraining_tp": 2}),
        ("Llama", "partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("Llama", "torch_dtype", {"torch_dtype": "float8_e4m3fn"}),
        ("Llama", "dtype", {"dtype": "int8"}),
    ],
)
def test_unsupported_values_are_refused_by_key(
    family: str, key: str, changes: dict[str, Any]
) -> None:
    """A value that asks for other arithmetic is refused, naming its key."""
    with pytest.raises(UnsupportedModelError, match=key):
        read_family(family, changes)


def test_a_short_layer_list_is_corrupt() -> None:
    """`layer_types` must have a name per layer."""
    with pytest.raises(CorruptFileError, match="layer_types"):
        read_family("Qwen3", {"use_sliding_window": True, "layer_types": ["full_attention"]})


@pytest.mark.parametrize(
    "key",
    [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ],
)
@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "8", True, [8], 10**400, 2**40])
def test_impossible_sizes_are_refused_by_key(key: str, value: Any) -> None:
    """A missing, wrong-typed, negative or absurd size names its key."""
    with pytest.raises(CorruptFileError, match=key):
        read({key: value})


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta"])
@pytest.mark.parametrize("value", [0, -1e-5, float("nan"), float("inf"), "1e-5", True, 10**400])
def test_impossible_numbers_are_refused_by_key(key: str, value: Any) -> None:
    """NaN, infinity, zero and text are no epsilon and no theta."""
    with pytest.raises(CorruptFileError, match=key):
        read({key: value})


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("num_key_value_heads 7", {"num_key_value_heads": 7}),
        ("head_dim 3 is odd", {"head_dim": 3}),
        ("not a multiple of num_attention_heads", {"hidden_size": 4097}),
        ("tie_word_embeddings", {"tie_word_embeddings": "yes"}),
        ("hidden_act", {"hidden_act": 3}),
        ("rope_scaling", {"rope_scaling": ["linear"]}),
    ],
)
def test_values_that_contradict_each_other_are_refused(match: str, changes: dict[str, Any]) -> None:
    """Sizes that do not divide, and values of the wrong type, are named."""
    with pytest.raises(CorruptFileError, match=match):
        read(changes)


def test_both_spellings_of_the_dtype_are_read() -> None:
    """Transformers 5 writes `dtype`; it counts before `torch_dtype`."""
    assert read({"dtype": "float16"}).torch_dtype == "float16"
    assert read(without="torch_dtype").torch_dtype == "float32"


@pytest.mark.parametrize("junk", [None, 0, "x", [], {}, float("nan"), {"a": 1}, [[1]], True])
def test_junk_under_any_key_is_a_model_error(junk: Any) -> None:
    """Whatever stands under a key, the outcome is a spec or a ModelError."""
    keys = [*LLAMA, "head_dim", "rope_scaling", "rope_parameters", "tie_word_embeddings"]
    keys += ["quantization_config", "layer_types", "use_sliding_window", "dtype", "hidden_act"]
    for family in ("Llama", "Mistral", "Qwen2", "Qwen3"):
        for key in keys:
            changes = {"architectures": [f"{family}ForCausalLM"], key: junk}
            try:
                spec = read(changes)
            except ModelError as error:
                assert str(error)  # noqa: PT017 (either outcome is right)
            else:
                assert spec.num_heads % spec.num_kv_heads == 0
