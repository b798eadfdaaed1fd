"""A Hugging Face `config.json` to `ModelSpec`; one small function per family.

The only module that spells keys the Hugging Face way. Reads no file: it is handed the
parsed object. RoPE settings are in `rope_fields`. Defaults for absent keys are those of
transformers 5.24's configuration classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nanoserve.errors import UnsupportedModelError
from nanoserve.spec.config_fields import (
    MAX_CONTEXT_TOKENS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    ConfigFields,
)
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.rope_fields import read_rope, stretched_context

_DTYPES = ("float32", "float16", "bfloat16")
_MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_SILU = ("silu", "swish")


@dataclass(frozen=True, slots=True)
class _Family:
    """What differs between families once the common keys are read."""

    architecture: str
    default_kv_heads: int | None = None  # where the key is absent; None: as many as query heads
    default_head_dim: int | None = None  # where the key is absent; None: hidden_size / heads
    sliding_window: int | None = None
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False


def spec_from_hf_config(config: Mapping[str, Any], path: str) -> ModelSpec:
    """Read the shape of a model from its config.

    Args:
        config: The object in config.json.
        path: Where it came from; stands in every error.

    Raises:
        UnsupportedModelError: An unknown architecture, or a key whose value asks for
            arithmetic that is not implemented; the key is named.
        CorruptFileError: A key is missing, of the wrong type, or out of bounds.
    """
    fields = ConfigFields(config, path)
    read_family = _FAMILIES[_architecture(fields)]
    _refuse_unsupported(fields)
    return _spec(fields, read_family(fields))


def _architecture(fields: ConfigFields) -> str:
    """Return the class name of the architecture, from `architectures` or else `model_type`."""
    names = fields.raw("architectures")
    if names is None:
        model_type = fields.text("model_type")
        name = _MODEL_TYPES.get(model_type, model_type)
    elif isinstance(names, list) and len(names) == 1 and isinstance(names[0], str):
        name = names[0]
    else:
        fields.fail_corrupt("architectures is not a list of one name.")
    if name not in _FAMILIES:
        what = f"{fields.path} is a model of architecture {name[:80]}."
        raise UnsupportedModelError(what, tuple(_FAMILIES))
    return name


def _refuse_unsupported(fields: ConfigFields) -> None:
    if fields.has("quantization_config"):
        fields.fail_unsupported(
            "quantization_config",
            "quantised safetensors are not supported; use a 16-bit or GGUF copy.",
        )
    if fields.text("hidden_act", "silu") not in _SILU:
        fields.fail_unsupported("hidden_act", "only silu is implemented.")
    if fields.size("pretraining_tp", MAX_WIDTH, 1) != 1:
        fields.fail_unsupported("pretraining_tp", "sliced projections are not implemented.")


def _llama(fields: ConfigFields) -> _Family:
    """Llama 2 and 3, SmolLM2, TinyLlama, Yi: plain, with optional biases."""
    has_bias = fields.flag("attention_bias")
    return _Family(
        architecture="llama",
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=fields.flag("mlp_bias"),
    )


def _mistral(fields: ConfigFields) -> _Family:
    """Mistral: Llama with a window over every layer, unless it is null."""
    if fields.has("layer_types"):
        fields.fail_unsupported("layer_types", "Mistral with layers that differ is not supported.")
    window = None
    if fields.has("sliding_window") or not fields.states("sliding_window"):
        window = fields.size("sliding_window", MAX_CONTEXT_TOKENS, 4096)
    return _Family(architecture="mistral", default_kv_heads=8, sliding_window=window)


def _qwen2(fields: ConfigFields) -> _Family:
    """Qwen2 and 2.5: bias on q, k and v."""
    return _Family(
        architecture="qwen2",
        default_kv_heads=32,
        sliding_window=_qwen_window(fields),
        has_qkv_bias=True,
    )


def _qwen3(fields: ConfigFields) -> _Family:
    """Qwen3: RMSNorm on each head of q and k, head_dim apart from hidden_size."""
    has_bias = fields.flag("attention_bias")
    return _Family(
        architecture="qwen3",
        default_kv_heads=32,
        default_head_dim=128,
        sliding_window=_qwen_window(fields),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_qk_norm=True,
    )


def _qwen_window(fields: ConfigFields) -> int | None:
    """Return the window of all layers; None where every layer attends to everything.

    Layers from `max_window_layers` on slide, unless `layer_types` says otherwise.
    """
    if not fields.flag("use_sliding_window"):
        return None
    num_layers = fields.size("num_hidden_layers", MAX_LAYERS)
    num_full = min(fields.size("max_window_layers", MAX_LAYERS, 28, low=0), num_layers)
    if fields.has("layer_types"):
        num_full = _count_full_layers(fields, num_layers)
    if num_full == num_layers:
        return None
    if num_full != 0:
        fields.fail_unsupported("use_sliding_window", "layers that differ are not supported.")
    return fields.size("sliding_window", MAX_CONTEXT_TOKENS, 4096)


def _count_full_layers(fields: ConfigFields, num_layers: int) -> int:
    layer_types = fields.raw("layer_types")
    known = ("full_attention", "sliding_attention")
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        fields.fail_corrupt(f"layer_types is not a list of {num_layers} names.")
    if any(name not in known for name in layer_types):
        fields.fail_unsupported("layer_types", f"layers known here: {', '.join(known)}.")
    return layer_types.count("full_attention")


def _spec(fields: ConfigFields, family: _Family) -> ModelSpec:
    hidden_size = fields.size("hidden_size", MAX_WIDTH)
    num_heads = fields.size("num_attention_heads", MAX_WIDTH)
    theta, scaling = read_rope(fields)
    declared = fields.size("max_position_embeddings", MAX_CONTEXT_TOKENS)
    return ModelSpec(
        architecture=family.architecture,
        num_layers=fields.size("num_hidden_layers", MAX_LAYERS),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, family, num_heads),
        head_dim=_head_dim(fields, family, hidden_size, num_heads),
        intermediate_size=fields.size("intermediate_size", MAX_WIDTH),
        vocab_size=fields.size("vocab_size", MAX_VOCAB),
        max_position_embeddings=stretched_context(declared, scaling),
        rms_norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        has_qkv_bias=family.has_qkv_bias,
        has_output_bias=family.has_output_bias,
        has_mlp_bias=family.has_mlp_bias,
        has_qk_norm=family.has_qk_norm,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        sliding_window=family.sliding_window,
        torch_dtype=_dtype(fields),
    )


def _num_kv_heads(fields: ConfigFields, family: _Family, num_heads: int) -> int:
    is_null = fields.states("num_key_value_heads")  # null means one per query head
    default = num_heads if is_null else family.default_kv_heads or num_heads
    num_kv_heads = fields.size("num_key_value_heads", MAX_WIDTH, default)
    if num_heads % num_kv_heads:
        fields.fail_corrupt(
            f"num_attention_heads {num_heads} is not a multiple of "
            f"num_key_value_heads {num_kv_heads}."
        )
    return num_kv_heads


def _head_dim(fields: ConfigFields, family: _Family, hidden_size: int, num_heads: int) -> int:
    if fields.has("head_dim") or family.default_head_dim:
        head_dim = fields.size("head_dim", MAX_WIDTH, family.default_head_dim)
    elif hidden_size % num_heads:
        fields.fail_corrupt(
            f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}, "
            "and there is no head_dim."
        )
    else:
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        fields.fail_corrupt(f"head_dim {head_dim} is odd; RoPE rotates pairs.")
    return head_dim


def _dtype(fields: ConfigFields) -> str:
    key = "dtype" if fields.has("dtype") else "torch_dtype"
    name = fields.text(key, "float32")
    if name not in _DTYPES:
        fields.fail_unsupported(key, f"weights are read as {', '.join(_DTYPES)}.")
    return name


_FAMILIES: dict[str, Callable[[ConfigFields], _Family]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
}
