"""A config.json to `ModelShape`, for every family the planner knows.

Finds the text model and its family, joins the family's parts, and adds embeddings and towers.
Reads no file: it is handed the parsed object. Where to add a family: see `family`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.config_fields import MAX_CONTEXT_TOKENS, MAX_VOCAB, ConfigFields
from nanoserve.spec.context_length import longest_context, rotary_positions
from nanoserve.spec.family import Family
from nanoserve.spec.family_index import FAMILY_NAMES, find_family
from nanoserve.spec.model_shape import LayerShape, ModelShape, Weight
from nanoserve.spec.shape_fields import hidden_size, shape_fields, stated_flag
from nanoserve.spec.towers import read_towers
from nanoserve.spec.weight_parts import join, linear, norm, norm_layer

_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
_ALIASES = {  # other names of a family, and the text models of the multimodal ones
    "phi-msft": "phi",
    "kimi_k2": "deepseek_v3",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "minimax_m3": "minimax_m3_vl_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "step3p7": "step3p5",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "kimi_k25": "deepseek_v3",
}
_UNREADABLE = {  # families that are known and cannot be planned, with the key that is why
    "deepseek_v4": ("compress_ratios", "its compressed cache cannot be sized here."),
    "deepseek_ref": ("compress_ratios", "its compressed cache cannot be sized here."),
}
_NESTED_DEFAULTS: Mapping[str, Mapping[str, Any]] = {  # what a `text_config` may leave out
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
    "mistral": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
}
_ARITHMETIC = (  # keys that change the sizes of any family that has them
    "kv_lora_rank",
    "num_experts",
    "num_kv_shared_layers",
    "compress_ratios",
    "cross_attention_layers",
    "hybrid_override_pattern",
    "block_configs",
    "linear_num_value_heads",
    "mamba_d_state",
    "hidden_size_per_layer_input",
    "num_global_key_value_heads",
    "moe_latent_size",
    "zero_expert_num",
)


def read_model_shape(config: Mapping[str, Any], path: str) -> ModelShape:
    """Read the shape of a model of any known family from its config.

    Args:
        config: The object in config.json.
        path: Where it came from; stands in every error.

    Raises:
        UnsupportedModelError: An unknown architecture, or a key whose value changes the
            arithmetic in a way that is not known; the key is named.
        CorruptFileError: A key is missing, of the wrong type, or out of bounds.
    """
    outer = shape_fields(config, path)
    text_config = _text_config(config, outer)
    kind = _model_type(shape_fields(text_config, path), outer)
    family = find_family(kind)
    defaults = family.defaults
    if text_config is not config:
        defaults = {**defaults, **_NESTED_DEFAULTS.get(kind, {})}
    fields = shape_fields(text_config, path, defaults)
    is_tied = _is_tied(outer, fields)
    tower, uncounted = read_towers(outer, hidden_size(fields))
    layers = _layers(fields, family)
    unread = fields.unread(_ARITHMETIC)
    if unread is not None:
        fields.fail_unsupported(unread, f"it means nothing known in a {kind} model.")
    shape = ModelShape(
        model_type=kind,
        layers=layers,
        hidden_size=hidden_size(fields),
        vocab_size=fields.size("vocab_size", MAX_VOCAB),
        max_position_embeddings=longest_context(fields, kind),
        rotary_positions=rotary_positions(fields, kind),
        tie_word_embeddings=is_tied,
        dtype=_dtype(outer, fields),
        weights=(*_outer_weights(fields, family, is_tied), *tower),
        quantization=_quantization(outer, fields),
        uncounted=uncounted,
        max_encoder_tokens=_encoder_tokens(fields),
    )
    return replace(shape, config_keys=fields.keys_read)  # once everything was asked for


def _text_config(config: Mapping[str, Any], outer: ConfigFields) -> Mapping[str, Any]:
    """Return the section of the text model, or the whole where there is none."""
    thinker = config.get("thinker_config")
    if isinstance(thinker, Mapping):
        config = thinker
    for key in _TEXT_SECTIONS:
        section = config.get(key)
        if section is None:
            continue
        if not isinstance(section, Mapping):
            outer.fail_corrupt(f"{key} is not an object.")
        return section
    return config


def _model_type(fields: ConfigFields, outer: ConfigFields) -> str:
    """Return the family: the text model's, else the whole model's, else its class's."""
    sources = (fields, outer)
    names = [source.text("model_type") for source in sources if source.has("model_type")]
    names += [name for source in sources for name in _class_names(source)]
    for name in names:
        known = _ALIASES.get(name, name)
        if known in _UNREADABLE:
            fields.fail_unsupported(*_UNREADABLE[known])
        if known in FAMILY_NAMES:
            return known
    if not names:
        fields.fail_unsupported("model_type", "it must name the family.")
    what = f"{fields.path} is of model_type {names[0][:80]}."
    raise UnsupportedModelError(what, tuple(sorted(FAMILY_NAMES)))


def _class_names(source: ConfigFields) -> list[str]:
    """Return the families whose classes `architectures` names: Qwen3MoeForCausalLM is one."""
    classes = source.raw("architectures")
    if not isinstance(classes, list):
        return []
    stems = {str(name).partition("For")[0].lower() for name in classes}
    return [kind for kind in (*FAMILY_NAMES, *_ALIASES) if kind.replace("_", "") in stems]


def _layers(fields: ConfigFields, family: Family) -> tuple[LayerShape, ...]:
    size = hidden_size(fields)
    norms = norm_layer(size, family.has_norm_bias, family.num_norms)
    mixers, mlps = family.mixers(fields), family.mlps(fields)
    return tuple(join(mixer, mlp, norms) for mixer, mlp in zip(mixers, mlps, strict=True))


def _outer_weights(fields: ConfigFields, family: Family, is_tied: bool) -> tuple[Weight, ...]:
    size, vocab_size = hidden_size(fields), fields.size("vocab_size", MAX_VOCAB)
    weights = (Weight("embedding", vocab_size, size, split="vocab"), *family.extra(fields))
    if not is_tied:
        has_bias = stated_flag(fields, family.has_head_bias)
        weights += linear("head", vocab_size, size, "vocab", has_bias)
    if family.has_final_norm:
        weights += (norm(size, family.has_norm_bias),)
    return weights


def _is_tied(outer: ConfigFields, fields: ConfigFields) -> bool:
    source = outer if outer.has("tie_word_embeddings") else fields
    return source.flag("tie_word_embeddings")


def _encoder_tokens(fields: ConfigFields) -> int | None:
    if not fields.has("max_source_positions"):
        return None
    return fields.size("max_source_positions", MAX_CONTEXT_TOKENS)


def _dtype(outer: ConfigFields, fields: ConfigFields) -> str | None:
    source = outer if outer.has("dtype") else fields
    return source.text("dtype") if source.has("dtype") else None


def _quantization(outer: ConfigFields, fields: ConfigFields) -> Mapping[str, Any] | None:
    """Return the quantisation section unread, the outer one before the text model's."""
    for source in (outer, fields):
        section = source.raw("quantization_config")
        if section is None:
            continue
        if not isinstance(section, Mapping):
            problem = "quantization_config is not an object."
            raise CorruptFileError(source.path, problem)
        return section
    return None
