"""`Family`: the parts a model family is made of, and the grouped-query attention most share.

A family is data: how its layers mix tokens, what follows, its norms, its defaults. The tables
are in `dense_families`, `expert_families`, `latent_families`, `hybrid_families`,
`gemma_families` and `classic_families`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nanoserve.spec.config_fields import ConfigFields
from nanoserve.spec.model_shape import AttentionShape, LayerShape, Weight
from nanoserve.spec.shape_fields import (
    Pattern,
    head_counts,
    head_dim,
    hidden_size,
    layer_kinds,
    num_layers,
    span_of,
    stated_flag,
    width,
)
from nanoserve.spec.weight_parts import AttentionExtras, attention_layer, mlp_layer

ReadLayers = Callable[[ConfigFields], list[LayerShape]]


def no_weights(fields: ConfigFields) -> tuple[Weight, ...]:
    """Return no weights: most families have none outside their layers but the embeddings."""
    del fields
    return ()


@dataclass(frozen=True, slots=True)
class Family:
    """How to read one family.

    Attributes:
        mixers: Reads what mixes tokens in each layer: attention, state or both.
        mlps: Reads what follows in each layer.
        num_norms: Norms over the residual stream per layer.
        has_norm_bias: They are LayerNorms with a bias, the final one too.
        has_final_norm: There is one after the last layer.
        has_head_bias: The output head has a bias; a key where the config says.
        extra: Reads weights outside the layers.
        defaults: Values of keys that configs leave out, as transformers 5.24 has them.
    """

    mixers: ReadLayers
    mlps: ReadLayers
    num_norms: int = 2
    has_norm_bias: bool = False
    has_final_norm: bool = True
    has_head_bias: bool | str = False
    extra: Callable[[ConfigFields], tuple[Weight, ...]] = no_weights
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttentionStyle:
    """What tells one family's grouped-query attention from another's.

    Attributes:
        qkv_bias: Bias on q, k and v: always, never, or as a key says.
        output_bias: Bias on the output projection, likewise.
        qk_norm: Norms on q and k: `head` (one, shared by heads), `heads` (all heads apart) or
            empty.
        qk_norm_key: The norms are there only if this key says so.
        pattern: Which layers slide; see `layer_kinds`.
        gate: A gate on the output: `channel`, `head` or empty.
        has_sinks: A learned sink per query head.
    """

    qkv_bias: bool | str = False
    output_bias: bool | str = False
    qk_norm: str = ""
    qk_norm_key: str = ""
    pattern: Pattern = "none"
    gate: str = ""
    has_sinks: bool = False


def attention_shape(fields: ConfigFields, kind: str) -> AttentionShape:
    """Return the shape of a grouped-query attention of a kind."""
    num_heads, num_kv_heads = head_counts(fields)
    size = head_dim(fields, num_heads)
    return AttentionShape(
        kind=kind,  # type: ignore[arg-type]
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=size,
        v_head_dim=size,
        span=span_of(fields, kind),
    )


def attention_extras(
    fields: ConfigFields, style: AttentionStyle, shape: AttentionShape
) -> AttentionExtras:
    """Return what a style adds to an attention of this shape."""
    heads, size = shape.num_heads, shape.head_dim
    has_norm = fields.flag(style.qk_norm_key) if style.qk_norm_key else True
    norm_heads = {"": 0, "head": 2, "heads": heads + shape.num_kv_heads}[style.qk_norm]
    return AttentionExtras(
        has_qkv_bias=stated_flag(fields, style.qkv_bias),
        has_output_bias=stated_flag(fields, style.output_bias),
        num_norm_params=norm_heads * size if has_norm else 0,
        num_gates={"": 0, "head": heads, "channel": heads * size}[style.gate],
        has_sinks=style.has_sinks,
    )


def grouped_query(style: AttentionStyle) -> ReadLayers:
    """Return the reader of a family whose layers all are grouped-query attention."""
    return partial(_grouped_query, style)


def _grouped_query(style: AttentionStyle, fields: ConfigFields) -> list[LayerShape]:
    layer_of = {}
    kinds = layer_kinds(fields, style.pattern)
    for kind in dict.fromkeys(kinds):
        if kind == "linear":
            fields.fail_unsupported("layer_types", "this family has no linear layers.")
        shape = attention_shape(fields, kind)
        extras = attention_extras(fields, style, shape)
        layer_of[kind] = attention_layer(shape, hidden_size(fields), extras)
    return [layer_of[kind] for kind in kinds]


def dense_mlp(is_gated: bool = True, bias: bool | str = False) -> ReadLayers:
    """Return the reader of a family whose layers all end in one MLP."""
    return partial(_dense_mlp, is_gated, bias)


def _dense_mlp(is_gated: bool, bias: bool | str, fields: ConfigFields) -> list[LayerShape]:
    size = width(fields, "intermediate_size")
    layer = mlp_layer(size, hidden_size(fields), is_gated, stated_flag(fields, bias))
    return [layer] * num_layers(fields)
