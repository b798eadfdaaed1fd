"""Gemma 3n and 4: layers that reuse an earlier layer's K and V, and embeddings per layer.

Source: transformers 5.24's modeling_gemma3n and modeling_gemma4; which layer is reused, vLLM's
gemma3n and gemma4 models: the last one of the same kind that has K and V of its own.
"""

from collections.abc import Mapping
from dataclasses import replace

from nanoserve.spec.config_fields import MAX_LAYERS, MAX_VOCAB, ConfigFields
from nanoserve.spec.expert_mlps import ExpertStyle, expert_dims
from nanoserve.spec.family import Family, attention_shape
from nanoserve.spec.model_shape import AttentionShape, LayerShape, Weight
from nanoserve.spec.shape_fields import (
    hidden_size,
    layer_kinds,
    num_layers,
    optional_width,
    width,
)
from nanoserve.spec.weight_parts import (
    AttentionExtras,
    attention_layer,
    experts_layer,
    join,
    linear,
    mlp_layer,
    norm,
    norm_layer,
)


def _sources(fields: ConfigFields, kinds: list[str]) -> list[int | None]:
    """Return for each layer the one whose K and V it reads; None where it has its own."""
    num_shared = fields.size("num_kv_shared_layers", MAX_LAYERS, 0, low=0)
    first_shared = len(kinds) - num_shared
    own = kinds[: max(first_shared, 0)]
    if any(kind not in own for kind in kinds):
        fields.fail_corrupt(f"num_kv_shared_layers {num_shared} leaves no layer to share with.")
    last = {kind: i for i, kind in enumerate(own)}
    return [None if i < first_shared else last[kind] for i, kind in enumerate(kinds)]


def _extras(shape: AttentionShape, has_bias: bool, shares_value: bool) -> AttentionExtras:
    num_norms = 1 if shape.shares_with is not None else 2  # k has none where it is not made
    return AttentionExtras(
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        num_norm_params=num_norms * shape.head_dim,
        shares_value=shares_value,
    )


def _gemma3n_mixers(fields: ConfigFields) -> list[LayerShape]:
    kinds = layer_kinds(fields, 5)
    size, has_bias = hidden_size(fields), fields.flag("attention_bias")
    layers = []
    for kind, source in zip(kinds, _sources(fields, kinds), strict=True):
        shape = replace(attention_shape(fields, kind), shares_with=source)
        layers.append(attention_layer(shape, size, _extras(shape, has_bias, False)))
    return layers


def _gemma3n_mlps(fields: ConfigFields) -> list[LayerShape]:
    """Return each layer's MLP with its alternating updates, low-rank residual and own input."""
    size, count = hidden_size(fields), num_layers(fields)
    inputs = fields.size("altup_num_inputs", 64, 4)
    rank = width(fields, "laurel_rank", 64)
    beside = LayerShape(
        weights=(
            Weight("other", size),  # correct_output_scale
            Weight("other", inputs, inputs),
            Weight("other", inputs * inputs, inputs),
            *linear("other", inputs, size, "none"),
            norm(size, copies=2),
            *linear("other", rank, size, "none"),
            *linear("other", size, rank, "none"),
            *_layer_input(fields),
        )
    )
    sizes = fields.raw("intermediate_size")
    if not isinstance(sizes, list):
        sizes = [width(fields, "intermediate_size", 16384)] * count
    if len(sizes) != count or any(type(s) is not int or not 0 < s < 1 << 20 for s in sizes):
        fields.fail_corrupt(f"intermediate_size is not a width or a list of {count} widths.")
    return [join(mlp_layer(each, size), beside) for each in sizes]


def _gemma3n_extra(fields: ConfigFields) -> tuple[Weight, ...]:
    size = hidden_size(fields)
    inputs = fields.size("altup_num_inputs", 64, 4)
    projections = (Weight("other", size, size, copies=2 * (inputs - 1)),)
    return (*projections, *_input_tables(fields))


def _input_width(fields: ConfigFields) -> int:
    return optional_width(fields, "hidden_size_per_layer_input")


def _layer_input(fields: ConfigFields) -> tuple[Weight, ...]:
    """Return what a layer does with its own embedding of the token; nothing without one."""
    per_layer, size = _input_width(fields), hidden_size(fields)
    if not per_layer:
        return ()
    gate = linear("other", per_layer, size, "none")
    return (*gate, *linear("other", size, per_layer, "none"), norm(size))


def _input_tables(fields: ConfigFields) -> tuple[Weight, ...]:
    """Return the embeddings per layer, one table for all layers."""
    per_layer = _input_width(fields)
    if not per_layer:
        return ()
    total = per_layer * num_layers(fields)
    vocab_size = fields.size("vocab_size_per_layer_input", MAX_VOCAB, 262_144)
    table = Weight("embedding", vocab_size, total, split="vocab")
    return (table, *linear("other", total, hidden_size(fields), "none"), norm(per_layer))


def _gemma4_mixers(fields: ConfigFields) -> list[LayerShape]:
    kinds = _gemma4_kinds(fields)
    shares_value = fields.flag("attention_k_eq_v")
    has_bias, size = fields.flag("attention_bias"), hidden_size(fields)
    layers = []
    for kind, source in zip(kinds, _sources(fields, kinds), strict=True):
        shape = replace(_gemma4_shape(fields, kind, shares_value), shares_with=source)
        extras = _extras(shape, has_bias, shares_value and kind == "full")
        layers.append(attention_layer(shape, size, extras))
    return layers


def _gemma4_kinds(fields: ConfigFields) -> list[str]:
    """Return the kinds of all layers; the last one is full, whatever the pattern says."""
    return [*layer_kinds(fields, 6)[:-1], "full"]


def _gemma4_shape(fields: ConfigFields, kind: str, shares_value: bool) -> AttentionShape:
    """Return a sliding layer, or a full one with wider and perhaps fewer heads."""
    shape = attention_shape(fields, kind)
    if kind != "full":
        return shape
    head_dim = width(fields, "global_head_dim", 512)
    num_kv_heads = shape.num_kv_heads
    if shares_value:
        num_kv_heads = width(fields, "num_global_key_value_heads", num_kv_heads)
    return replace(shape, num_kv_heads=num_kv_heads, head_dim=head_dim, v_head_dim=head_dim)


def _gemma4_mlps(fields: ConfigFields) -> list[LayerShape]:
    """Return each layer's MLP, beside it the experts, and what its own input is used for."""
    size, inner = hidden_size(fields), width(fields, "intermediate_size")
    kinds = _gemma4_kinds(fields)
    is_wide = fields.flag("use_double_wide_mlp")
    experts = LayerShape(weights=_layer_input(fields))
    if fields.flag("enable_moe_block"):
        dims = expert_dims(fields, ExpertStyle())
        dims = replace(dims, num_router_params=size + dims.num_experts)
        more = norm_layer(size, copies=3)
        experts = join(experts_layer(dims, size), experts, more)
    return [
        join(experts, mlp_layer(inner * (2 if is_wide and source is not None else 1), size))
        for source in _sources(fields, kinds)
    ]


_TIED = {"tie_word_embeddings": True, "attention_bias": False}

GEMMA_FAMILIES: Mapping[str, Family] = {
    "gemma3n_text": Family(
        _gemma3n_mixers,
        _gemma3n_mlps,
        num_norms=4,
        extra=_gemma3n_extra,
        defaults={
            "num_key_value_heads": 2,
            "head_dim": 256,
            "sliding_window": 512,
            "hidden_size_per_layer_input": 256,
            "num_kv_shared_layers": 15,
        }
        | _TIED,
    ),
    "gemma4_text": Family(
        _gemma4_mixers,
        _gemma4_mlps,
        num_norms=4,
        extra=_input_tables,
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 512,
            "hidden_size_per_layer_input": 256,
        }
        | _TIED,
    ),
}
