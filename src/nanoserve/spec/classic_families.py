"""Older decoders: GPT-2, GPT-NeoX, BLOOM, OPT, MPT, Falcon, Phi, StarCoder, DBRX, Qwen 1.

What they share is little: LayerNorms, biases, plain MLPs, and key names of their own.
Source: the modelling files of transformers 5.24.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from nanoserve.spec.config_fields import MAX_CONTEXT_TOKENS, ConfigFields
from nanoserve.spec.family import (
    AttentionStyle,
    Family,
    attention_extras,
    attention_shape,
    dense_mlp,
    grouped_query,
)
from nanoserve.spec.model_shape import LayerShape, Weight
from nanoserve.spec.shape_fields import (
    MAX_EXPERTS,
    head_counts,
    head_dim,
    hidden_size,
    num_layers,
    width,
)
from nanoserve.spec.weight_parts import (
    ExpertDims,
    attention_layer,
    experts_layer,
    join,
    mlp_layer,
    norm,
    norm_layer,
)

_BIASED = AttentionStyle(qkv_bias=True, output_bias=True)
_TIED = {"tie_word_embeddings": True}


def _four_wide(bias: bool | str, fields: ConfigFields) -> list[LayerShape]:
    """Return plain MLPs four times as wide as the model, unless the config states a width."""
    size = hidden_size(fields)
    has_bias = fields.flag(bias) if isinstance(bias, str) else bias
    inner = width(fields, "intermediate_size", fields.size("expansion_ratio", 64, 4) * size)
    return [mlp_layer(inner, size, is_gated=False, has_bias=has_bias)] * num_layers(fields)


def _half_wide(fields: ConfigFields) -> list[LayerShape]:
    """Return Qwen 1's MLPs: its `intermediate_size` is that of gate and up together."""
    inner = width(fields, "intermediate_size")
    return [mlp_layer(inner // 2, hidden_size(fields))] * num_layers(fields)


def _positions(num_more: int, fields: ConfigFields) -> tuple[Weight, ...]:
    """Return learned positions, `num_more` rows longer than the context."""
    rows = fields.size("max_position_embeddings", MAX_CONTEXT_TOKENS) + num_more
    return (Weight("embedding", rows, hidden_size(fields)),)


def _embedding_norm(fields: ConfigFields) -> tuple[Weight, ...]:
    return (norm(hidden_size(fields), has_bias=True),)


def _opt_mlps(fields: ConfigFields) -> list[LayerShape]:
    size = hidden_size(fields)
    if width(fields, "word_embed_proj_dim", size) != size:
        fields.fail_unsupported("word_embed_proj_dim", "projected embeddings are not known here.")
    if not fields.flag("do_layer_norm_before", default=True):
        fields.fail_unsupported("do_layer_norm_before", "norms after are not known here.")
    return _four_wide("enable_bias", fields)


def _one_kv_head(fields: ConfigFields) -> list[LayerShape]:
    """Return StarCoder 1's attention: one KV head unless `multi_query` is false."""
    shape = attention_shape(fields, "full")
    if fields.flag("multi_query", default=True):
        shape = replace(shape, num_kv_heads=1)
    extras = attention_extras(fields, _BIASED, shape)
    return [attention_layer(shape, hidden_size(fields), extras)] * num_layers(fields)


def _falcon_layers(fields: ConfigFields) -> list[LayerShape]:
    """Return Falcon's attention with its norms, whose number depends on the generation.

    Before the new decoder architecture there is one KV head, or one per query head, whatever
    `num_kv_heads` says.
    """
    num_heads = width(fields, "num_attention_heads")
    is_new = fields.flag("new_decoder_architecture")
    shape = attention_shape(fields, "full")
    if not is_new:
        is_multi_query = fields.flag("multi_query", default=True)
        shape = replace(shape, num_kv_heads=1 if is_multi_query else num_heads)
    num_norms = 1 if fields.flag("parallel_attn", default=True) else 2
    if is_new:
        num_norms = fields.size("num_ln_in_parallel_attn", 2, 2)
    style = AttentionStyle(qkv_bias="bias", output_bias="bias")
    size = hidden_size(fields)
    layer = attention_layer(shape, size, attention_extras(fields, style, shape))
    norms = norm_layer(size, has_bias=True, copies=num_norms)
    return [join(layer, norms)] * num_layers(fields)


def _dbrx_attention(fields: ConfigFields) -> list[LayerShape]:
    section = fields.section("attn_config")
    if section is None:
        fields.fail_unsupported("attn_config", "it must say how many KV heads there are.")
    num_heads = head_counts(fields)[0]
    num_kv_heads = width(section, "kv_n_heads", num_heads)
    if num_heads % num_kv_heads:
        fields.fail_corrupt(f"n_heads {num_heads} is not a multiple of kv_n_heads {num_kv_heads}.")
    shape = replace(
        attention_shape(fields, "full"),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim(fields, num_heads),
    )
    extras = attention_extras(fields, AttentionStyle(), shape)
    return [attention_layer(shape, hidden_size(fields), extras)] * num_layers(fields)


def _dbrx_experts(fields: ConfigFields) -> list[LayerShape]:
    section = fields.section("ffn_config")
    if section is None:
        fields.fail_unsupported("ffn_config", "it must say what the experts are.")
    num_experts = section.size("moe_num_experts", MAX_EXPERTS, 4)
    dims = ExpertDims(
        num_experts,
        section.size("moe_top_k", num_experts, 1),
        width(section, "ffn_hidden_size", 3584),
    )
    return [experts_layer(dims, hidden_size(fields))] * num_layers(fields)


def _phi_attention(fields: ConfigFields) -> list[LayerShape]:
    if fields.flag("qk_layernorm"):
        fields.fail_unsupported("qk_layernorm", "norms on q and k are not known here.")
    return grouped_query(_BIASED)(fields)


CLASSIC_FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        grouped_query(_BIASED),
        partial(_four_wide, True),
        has_norm_bias=True,
        extra=partial(_positions, 0),
        defaults=_TIED,
    ),
    "gpt_bigcode": Family(
        _one_kv_head,
        partial(_four_wide, True),
        has_norm_bias=True,
        extra=partial(_positions, 0),
        defaults=_TIED,
    ),
    "gpt_neox": Family(
        grouped_query(AttentionStyle(qkv_bias="attention_bias", output_bias="attention_bias")),
        partial(_four_wide, True),
        has_norm_bias=True,
        defaults={"attention_bias": True},
    ),
    "bloom": Family(
        grouped_query(_BIASED),
        partial(_four_wide, True),
        has_norm_bias=True,
        extra=_embedding_norm,
        defaults=_TIED,
    ),
    "opt": Family(
        grouped_query(AttentionStyle(qkv_bias="enable_bias", output_bias="enable_bias")),
        _opt_mlps,
        has_norm_bias=True,
        extra=partial(_positions, 2),
        defaults={"enable_bias": True} | _TIED,
    ),
    "mpt": Family(grouped_query(AttentionStyle()), partial(_four_wide, False), defaults=_TIED),
    "falcon": Family(
        _falcon_layers, partial(_four_wide, "bias"), num_norms=0, has_norm_bias=True, defaults=_TIED
    ),
    "phi": Family(
        _phi_attention,
        partial(_four_wide, True),
        num_norms=1,
        has_norm_bias=True,
        has_head_bias=True,
    ),
    "starcoder2": Family(
        grouped_query(AttentionStyle(qkv_bias="use_bias", output_bias="use_bias", pattern="all")),
        dense_mlp(is_gated=False, bias="use_bias"),
        has_norm_bias=True,
        defaults={"use_bias": True, "num_key_value_heads": 2} | _TIED,
    ),
    "nemotron": Family(
        grouped_query(AttentionStyle(qkv_bias="attention_bias", output_bias="attention_bias")),
        dense_mlp(is_gated=False, bias="mlp_bias"),
        has_norm_bias=True,
    ),
    "qwen": Family(grouped_query(AttentionStyle(qkv_bias=True)), _half_wide),
    "dbrx": Family(_dbrx_attention, _dbrx_experts),
}
