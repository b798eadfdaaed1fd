"""A config is read where it says things, old names included, or refused by the key."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError, ModelError, UnsupportedModelError
from nanoserve.spec.param_count import count_parameters
from nanoserve.spec.read_shape import read_model_shape
from tests.shape_cases import TINY, kinds_of, tiny_shape


def test_a_plain_config_is_read_whole() -> None:
    """Every field outside the layers comes from its key."""
    shape = tiny_shape(torch_dtype="bfloat16", quantization_config={"bits": 4})

    assert (shape.model_type, shape.hidden_size, shape.vocab_size) == ("llama", 64, 128)
    assert (shape.max_position_embeddings, shape.dtype) == (512, "bfloat16")
    assert (shape.tie_word_embeddings, shape.quantization) == (False, {"bits": 4})
    assert (len(shape.layers), shape.uncounted) == (4, ())


@pytest.mark.parametrize("section", ["text_config", "llm_config", "language_config"])
def test_the_text_model_may_be_nested(section: str) -> None:
    """The text model's section is read; what it leaves out may stand outside."""
    inner = {**TINY, "dtype": "float16", "quantization_config": {"bits": 8}}
    shape = read_model_shape({"model_type": "new_vl", section: inner}, "config.json")

    assert (shape.model_type, shape.dtype, shape.quantization) == ("llama", "float16", {"bits": 8})


def test_a_thinker_is_looked_into() -> None:
    """Omni models keep the text model two levels down."""
    shape = read_model_shape({"thinker_config": {"text_config": TINY}}, "config.json")

    assert len(shape.layers) == 4


def test_outer_keys_count_before_inner_ones() -> None:
    """Ties, dtype and quantisation of the whole model come before the text model's."""
    outer = {"tie_word_embeddings": True, "dtype": "bfloat16", "quantization_config": {"a": 1}}
    inner = {**TINY, "tie_word_embeddings": False, "dtype": "float32", "quantization_config": {}}
    shape = read_model_shape({**outer, "text_config": inner}, "config.json")

    assert (shape.tie_word_embeddings, shape.dtype) == (True, "bfloat16")
    assert shape.quantization == {"a": 1}


def test_old_key_names_are_read() -> None:
    """ChatGLM's and Falcon's spellings mean what today's do."""
    old = {
        "n_embd": 64,
        "n_layer": 4,
        "n_head": 4,
        "n_head_kv": 2,
        "ffn_dim": 96,
        "n_positions": 512,
        "model_type": "llama",
        "vocab_size": 128,
    }

    assert read_model_shape(old, "config.json") == tiny_shape()


def test_an_error_names_the_key_as_the_file_spells_it() -> None:
    """Who wrote `n_embd` is told about `n_embd`."""
    config = {**TINY, "n_embd": -1}
    del config["hidden_size"]

    with pytest.raises(CorruptFileError, match="n_embd is -1"):
        read_model_shape(config, "config.json")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "martian"}, "model_type martian"),
        ({"model_type": None}, "model_type"),
        ({"model_type": "deepseek_v4", "compress_ratios": [4]}, "compress_ratios"),
        ({"num_experts": 8}, "num_experts"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
        ({"layer_types": ["odd"] * 4}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types"),
    ],
)
def test_what_is_not_understood_is_refused_by_key(changes: dict[str, Any], match: str) -> None:
    """An unknown family, or a key that would change the sizes, is never passed over."""
    with pytest.raises(UnsupportedModelError, match=match):
        tiny_shape(**{"model_type": "llama", **changes})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": 2**60}, "vocab_size"),
        ({"num_attention_heads": "4"}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        ({"hidden_size": 66}, "not a multiple of num_attention_heads"),
        ({"text_config": [1]}, "text_config is not an object"),
        ({"quantization_config": "int4"}, "quantization_config"),
        ({"layer_types": ["full_attention"]}, "layer_types is not a list of 4"),
    ],
)
def test_impossible_values_are_refused_by_key(changes: dict[str, Any], match: str) -> None:
    """Zero, absurd and contradicting sizes name their key."""
    with pytest.raises(CorruptFileError, match=match):
        tiny_shape(**changes)


def test_no_heads_for_keys_means_one_per_query_head() -> None:
    """A null or absent count of KV heads is the count of query heads."""
    attention = tiny_shape(num_key_value_heads=None).layers[0].attention

    assert attention is not None
    assert attention.num_kv_heads == 4


def test_towers_that_cannot_be_counted_are_named() -> None:
    """A tower without sizes, or of an unknown kind, and an audio tower stand in `uncounted`."""
    inner = {"text_config": {**TINY, "head_dim": 16, "sliding_window": 8}}
    shape = read_model_shape({"model_type": "gemma3", "audio_config": {"a": 1}, **inner}, "c")

    assert shape.uncounted == ("vision", "audio")
    assert count_parameters(shape).tower == 0


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ({"visual": {"width": 1664}}, ("vision",)),
        ({"mm_vision_tower": "openai/clip-vit-large-patch14-336"}, ("vision",)),
        ({"vision_config": {"hidden_size": 8}}, ("vision",)),
        ({"audio_processor": {"name": "cascades"}, "img_processor": {"a": 1}}, ("vision", "audio")),
        ({"talker_config": {"a": 1}}, ("speech output",)),
        ({"thinker_config": TINY | {"audio_config": {"a": 1}}}, ("audio",)),
        ({"vision_config": None, "audio_config": {}, "mm_vision_tower": ""}, ()),
    ],
)
def test_no_part_is_dropped_in_silence(part: dict[str, Any], names: tuple[str, ...]) -> None:
    """Whatever a config calls a tower, the shape names what was not counted."""
    assert read_model_shape(TINY | part, "c").uncounted == names


def test_the_context_may_be_unbounded() -> None:
    """A recurrent model without a longest context has none."""
    config = {
        "model_type": "mamba",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": 128,
    }
    shape = read_model_shape(config, "config.json")

    assert shape.max_position_embeddings is None
    assert kinds_of(shape) == ["mamba1", "mamba1"]


def test_every_error_is_one_of_ours() -> None:
    """An empty config is refused, not a traceback."""
    with pytest.raises(ModelError):
        read_model_shape({}, "config.json")


def test_the_class_names_the_family_where_no_type_does() -> None:
    """Forks keep the class and change the type, or leave it out."""
    config = {**TINY, "model_type": "my_fork", "architectures": ["LlamaForCausalLM"]}

    assert read_model_shape(config, "config.json").model_type == "llama"


@pytest.mark.parametrize("classes", ["LlamaForCausalLM", [3], []])
def test_odd_class_names_are_no_help(classes: Any) -> None:
    """Then the type is refused by its name."""
    with pytest.raises(UnsupportedModelError, match="my_fork"):
        tiny_shape("my_fork", architectures=classes)


def test_a_nested_text_model_may_leave_out_its_sizes() -> None:
    """LLaVA's files do, and mean Llama 2 7B's; at the top level they are required."""
    config = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
    shape = read_model_shape(config, "config.json")

    assert (shape.hidden_size, len(shape.layers), shape.vocab_size) == (4096, 32, 32064)
    with pytest.raises(CorruptFileError, match="missing"):
        read_model_shape(config["text_config"], "config.json")  # type: ignore[arg-type]


def test_chatglm_is_glm_4_under_older_names() -> None:
    """Its groups, channels and padded vocabulary give GLM-4-9B's parameters."""
    config = {
        "model_type": "chatglm",
        "hidden_size": 4096,
        "ffn_hidden_size": 13696,
        "num_layers": 40,
        "num_attention_heads": 32,
        "multi_query_group_num": 2,
        "kv_channels": 128,
        "padded_vocab_size": 151552,
        "vocab_size": 151000,
        "add_qkv_bias": True,
        "seq_length": 131072,
    }
    shape = read_model_shape(config, "config.json")

    assert count_parameters(shape).total == 9_399_951_360
