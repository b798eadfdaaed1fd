"""Recurrent models and hybrids: Qwen3-Next and 3.5, Jamba, Granite 4, Bamba, Falcon-H1, Nemotron-H.

Kimi Linear and the pure Mambas too. Source: the modelling files of transformers 5.24; the dtypes
of the states, of vLLM 0.32.
"""

from collections.abc import Callable, Mapping
from functools import partial

from nanoserve.spec.config_fields import MAX_LAYERS, MAX_WIDTH, ConfigFields
from nanoserve.spec.expert_mlps import ExpertStyle, expert_mlps
from nanoserve.spec.family import (
    AttentionStyle,
    Family,
    ReadLayers,
    attention_extras,
    attention_shape,
    dense_mlp,
)
from nanoserve.spec.latent_families import latent_dims
from nanoserve.spec.mamba_readers import (
    jamba_mamba,
    mamba1_layers,
    mamba2_layers,
    prefixed_mamba2,
)
from nanoserve.spec.model_shape import LayerShape, StateShape
from nanoserve.spec.shape_fields import (
    hidden_size,
    layer_kinds,
    layer_numbers,
    num_layers,
    state_dtype,
    width,
)
from nanoserve.spec.state_mixers import (
    delta_net_layer,
    kimi_delta_layer,
)
from nanoserve.spec.weight_parts import (
    attention_layer,
    join,
    latent_attention_layer,
    mlp_layer,
)

ReadKinds = Callable[[ConfigFields], list[str]]
ReadLayer = Callable[[ConfigFields], LayerShape]
_BY_KEY = AttentionStyle(qkv_bias="attention_bias", output_bias="attention_bias")
_GATED = AttentionStyle(
    qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="head", gate="channel"
)


def alternate(kinds: ReadKinds, attention: ReadLayer, state: ReadLayer) -> ReadLayers:
    """Return the reader of a family whose layers are one or the other."""
    return partial(_alternate, kinds, attention, state)


def _alternate(
    kinds: ReadKinds, attention: ReadLayer, state: ReadLayer, fields: ConfigFields
) -> list[LayerShape]:
    layers = {"full": attention(fields), "linear": state(fields)}
    names = kinds(fields)
    if not layers.keys() >= set(names):
        fields.fail_unsupported("layer_types", "this family has full and linear layers only.")
    return [layers[name] for name in names]


def attention(style: AttentionStyle) -> ReadLayer:
    """Return the reader of one full grouped-query attention."""
    return partial(_attention, style)


def _attention(style: AttentionStyle, fields: ConfigFields) -> LayerShape:
    shape = attention_shape(fields, "full")
    return attention_layer(shape, hidden_size(fields), attention_extras(fields, style, shape))


def _kinds_by_interval(fields: ConfigFields) -> list[str]:
    if fields.has("layer_types"):
        return layer_kinds(fields, "none")
    interval = fields.size("full_attention_interval", MAX_LAYERS, 4)
    return ["linear" if (i + 1) % interval else "full" for i in range(num_layers(fields))]


def _kinds_by_period(fields: ConfigFields) -> list[str]:
    period = fields.size("attn_layer_period", MAX_LAYERS)
    offset = fields.size("attn_layer_offset", MAX_LAYERS, low=0)
    return ["full" if i % period == offset else "linear" for i in range(num_layers(fields))]


def _kinds_by_list(fields: ConfigFields) -> list[str]:
    if fields.has("layer_types"):
        return layer_kinds(fields, "none")
    full = layer_numbers(fields, "attn_layer_indices")
    return ["full" if i in full else "linear" for i in range(num_layers(fields))]


def _kinds_of_kimi(fields: ConfigFields) -> list[str]:
    """Return the kinds; the checkpoint counts its layers from 1."""
    section = fields.section("linear_attn_config")
    if fields.has("layer_types"):
        return layer_kinds(fields, "none")
    if section is None or not section.has("full_attn_layers"):
        fields.fail_unsupported("linear_attn_config", "it must say which layers attend.")
    full = layer_numbers(section, "full_attn_layers")
    return ["full" if i + 1 in full else "linear" for i in range(num_layers(fields))]


def _delta_net(fields: ConfigFields) -> LayerShape:
    shape = StateShape(
        kind="gated_delta_net",
        num_heads=width(fields, "linear_num_value_heads"),
        head_dim=width(fields, "linear_value_head_dim"),
        state_size=width(fields, "linear_key_head_dim"),
        num_groups=width(fields, "linear_num_key_heads"),
        conv_kernel=width(fields, "linear_conv_kernel_dim", 4),
        dtype=state_dtype(fields, "mamba_ssm_dtype"),
    )
    return delta_net_layer(shape, hidden_size(fields))


def _kimi_delta(fields: ConfigFields) -> LayerShape:
    section = fields.section("linear_attn_config") or fields
    nested = section is not fields
    heads = width(section, "num_heads" if nested else "linear_num_heads")
    shape = StateShape(
        kind="kda",
        num_heads=heads,
        head_dim=width(section, "head_dim" if nested else "linear_head_dim"),
        state_size=width(section, "head_dim" if nested else "linear_head_dim"),
        num_groups=heads,
        conv_kernel=width(
            section, "short_conv_kernel_size" if nested else "linear_conv_kernel_dim", 4
        ),
        dtype="float32",
    )
    return kimi_delta_layer(shape, hidden_size(fields))


def _kimi_attention(fields: ConfigFields) -> LayerShape:
    return latent_attention_layer(latent_dims(fields), hidden_size(fields))


def _falcon_h1_layers(fields: ConfigFields) -> list[LayerShape]:
    """Return attention and Mamba-2 side by side in every layer."""
    state = prefixed_mamba2(fields, has_norm=fields.flag("mamba_rms_norm"))
    return [join(_attention(_BY_KEY, fields), state)] * num_layers(fields)


def _no_mlps(fields: ConfigFields) -> list[LayerShape]:
    return [LayerShape()] * num_layers(fields)


def _granite_mlps(fields: ConfigFields) -> list[LayerShape]:
    """Return experts beside a shared MLP, or that MLP alone where there are no experts."""
    if fields.size("num_experts", MAX_WIDTH, 0, low=0):
        return _GRANITE_EXPERTS(fields)
    layer = mlp_layer(width(fields, "shared_intermediate_size"), hidden_size(fields))
    return [layer] * num_layers(fields)


_GRANITE_EXPERTS = expert_mlps(
    ExpertStyle(width_key="intermediate_size", shared_key="shared_intermediate_size")
)
_QWEN3_NEXT = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_QWEN3_NEXT_MIXERS = alternate(_kinds_by_interval, attention(_GATED), _delta_net)
_QWEN3_NEXT_EXPERTS = ExpertStyle(
    rule="step", shared_key="shared_expert_intermediate_size", has_shared_gate=True
)
_JAMBA = {
    "num_key_value_heads": 8,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 16,
    "num_experts_per_tok": 2,
}

HYBRID_FAMILIES: Mapping[str, Family] = {
    "qwen3_next": Family(
        _QWEN3_NEXT_MIXERS, expert_mlps(_QWEN3_NEXT_EXPERTS), defaults=_QWEN3_NEXT
    ),
    "qwen3_5_text": Family(
        _QWEN3_NEXT_MIXERS, dense_mlp(), defaults=_QWEN3_NEXT | {"num_key_value_heads": 4}
    ),
    "qwen3_5_moe_text": Family(
        _QWEN3_NEXT_MIXERS, expert_mlps(_QWEN3_NEXT_EXPERTS), defaults=_QWEN3_NEXT
    ),
    "jamba": Family(
        alternate(_kinds_by_period, attention(AttentionStyle()), jamba_mamba),
        expert_mlps(ExpertStyle(width_key="intermediate_size", rule="period")),
        defaults=_JAMBA,
    ),
    "mamba": Family(mamba1_layers, _no_mlps, num_norms=1, defaults={"tie_word_embeddings": True}),
    "falcon_mamba": Family(
        mamba1_layers, _no_mlps, num_norms=1, defaults={"tie_word_embeddings": True}
    ),
    "mamba2": Family(mamba2_layers, _no_mlps, num_norms=1),
    "bamba": Family(
        alternate(_kinds_by_list, attention(_BY_KEY), prefixed_mamba2),
        dense_mlp(bias="mlp_bias"),
        defaults={"num_key_value_heads": 8},
    ),
    "granitemoehybrid": Family(
        alternate(_kinds_by_list, attention(_BY_KEY), prefixed_mamba2), _granite_mlps
    ),
    "falcon_h1": Family(
        _falcon_h1_layers,
        dense_mlp(bias="mlp_bias"),
        defaults={"num_key_value_heads": 8, "mamba_d_ssm": 1024},
    ),
    "kimi_linear": Family(
        alternate(_kinds_of_kimi, _kimi_attention, _kimi_delta),
        expert_mlps(ExpertStyle(rule="first_k")),
        defaults={"first_k_dense_replace": 1},
    ),
}
