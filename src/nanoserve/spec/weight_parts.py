"""Weights of the parts that layers are built of: projections, norms, MLPs, experts, mixers.

One function per part, in the arithmetic of the modules transformers builds. Knows no config
keys: see the family modules, which do.
"""

from dataclasses import dataclass

from nanoserve.spec.model_shape import (
    AttentionShape,
    Group,
    LatentShape,
    LayerShape,
    MlpShape,
    Split,
    Weight,
)


def linear(
    group: Group, rows: int, columns: int, split: Split = "even", has_bias: bool = False
) -> tuple[Weight, ...]:
    """Return a projection to `rows` from `columns`, and its bias if it has one."""
    weight = Weight(group, rows, columns, split=split)
    return (weight, Weight(group, rows, split=split)) if has_bias else (weight,)


def norm(size: int, has_bias: bool = False, copies: int = 1) -> Weight:
    """Return `copies` norms over `size` values, with a bias each in a LayerNorm."""
    return Weight("norms", size * (2 if has_bias else 1), copies=copies)


def norm_layer(size: int, has_bias: bool = False, copies: int = 1) -> LayerShape:
    """Return `copies` norms over `size` values as a part of a layer; none where it is 0."""
    return LayerShape(weights=(norm(size, has_bias, copies),) if copies else ())


@dataclass(frozen=True, slots=True)
class AttentionExtras:
    """What a grouped-query attention has beside its four projections.

    Attributes:
        has_qkv_bias: Bias on q, k and v.
        has_output_bias: Bias on the output projection.
        num_norm_params: Parameters of the norms on q and k.
        num_gates: Extra rows of the query side: a gate per head, or per channel.
        has_sinks: A learned sink per query head.
        shares_value: The value projection is the key's.
    """

    has_qkv_bias: bool = False
    has_output_bias: bool = False
    num_norm_params: int = 0
    num_gates: int = 0
    has_sinks: bool = False
    shares_value: bool = False


def attention_layer(shape: AttentionShape, hidden_size: int, extras: AttentionExtras) -> LayerShape:
    """Return a grouped-query attention with its weights; K and V may be another layer's."""
    query_size = shape.num_heads * shape.head_dim
    value_size = shape.num_heads * shape.v_head_dim
    bias = extras.has_qkv_bias
    weights = linear("attention", query_size, hidden_size, "even", bias)
    if shape.shares_with is None:
        k_size = shape.num_kv_heads * shape.head_dim
        weights += linear("attention", k_size, hidden_size, "kv", bias)
        if not extras.shares_value:
            v_size = shape.num_kv_heads * shape.v_head_dim
            weights += linear("attention", v_size, hidden_size, "kv", bias)
    weights += linear("attention", hidden_size, value_size, "even", extras.has_output_bias)
    if extras.num_gates:
        weights += linear("attention", extras.num_gates, hidden_size)
    if extras.num_norm_params:
        weights += (norm(extras.num_norm_params),)
    if extras.has_sinks:
        weights += (Weight("attention", shape.num_heads, split="even"),)
    return LayerShape(attention=shape, weights=weights)


@dataclass(frozen=True, slots=True)
class LatentDims:
    """Widths of a multi-head latent attention.

    Attributes:
        num_heads: Query heads.
        q_lora_rank: Width of the compressed query; 0 where it is not compressed.
        kv_lora_rank: Width of the compressed K and V.
        nope_dim: Width of a head's part without rotation.
        rope_dim: Width of the rotated part.
        v_dim: Width of a head's value.
        has_bias: Bias on the projections down and on the output.
        num_index_heads: Heads of the indexer; 0 without one.
        index_dim: Width of the indexer's key.
        has_index_weights: The layer has an indexer of its own, not an earlier layer's choice.
    """

    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    has_bias: bool = False
    num_index_heads: int = 0
    index_dim: int = 0
    has_index_weights: bool = True


def latent_attention_layer(dims: LatentDims, hidden_size: int) -> LayerShape:
    """Return a multi-head latent attention with its weights, indexer included.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1; the indexer, DeepSeek-V3.2.
    """
    query_size = dims.num_heads * (dims.nope_dim + dims.rope_dim)
    weights: tuple[Weight, ...] = ()
    if dims.q_lora_rank:
        weights += linear("attention", dims.q_lora_rank, hidden_size, "none", dims.has_bias)
        weights += (norm(dims.q_lora_rank),)
    weights += linear("attention", query_size, dims.q_lora_rank or hidden_size)
    latent = dims.kv_lora_rank + dims.rope_dim
    weights += linear("attention", latent, hidden_size, "none", dims.has_bias)
    weights += (norm(dims.kv_lora_rank),)
    up_size = dims.num_heads * (dims.nope_dim + dims.v_dim)
    weights += linear("attention", up_size, dims.kv_lora_rank)
    out_size = dims.num_heads * dims.v_dim
    weights += linear("attention", hidden_size, out_size, "even", dims.has_bias)
    has_indexer = dims.num_index_heads > 0 and dims.has_index_weights
    if has_indexer:
        index_size = dims.num_index_heads * dims.index_dim
        weights += linear("attention", index_size, dims.q_lora_rank, "none")
        weights += linear("attention", dims.index_dim, hidden_size, "none")
        weights += (norm(dims.index_dim, has_bias=True),)
        weights += linear("attention", dims.num_index_heads, hidden_size, "none")
    shape = AttentionShape(
        kind="mla",
        num_heads=dims.num_heads,
        num_kv_heads=1,
        head_dim=dims.nope_dim + dims.rope_dim,
        v_head_dim=dims.v_dim,
        latent=LatentShape(dims.kv_lora_rank, dims.rope_dim),
        index_dim=dims.index_dim if has_indexer else 0,
    )
    return LayerShape(attention=shape, weights=weights)


def mlp_layer(
    intermediate_size: int, hidden_size: int, is_gated: bool = True, has_bias: bool = False
) -> LayerShape:
    """Return a dense feed-forward part: gate, up and down, or up and down."""
    weights = _mlp_weights(intermediate_size, hidden_size, is_gated, has_bias)
    return LayerShape(mlp=MlpShape(intermediate_size), weights=weights)


def _mlp_weights(
    intermediate_size: int, hidden_size: int, is_gated: bool, has_bias: bool = False
) -> tuple[Weight, ...]:
    up = linear("mlp", intermediate_size, hidden_size, "even", has_bias)
    down = linear("mlp", hidden_size, intermediate_size, "even", has_bias)
    return (up * 2 if is_gated else up) + down


@dataclass(frozen=True, slots=True)
class ExpertDims:
    """Widths and counts of a mixture of experts.

    Attributes:
        num_experts: Routed experts.
        num_per_token: Experts one token visits.
        intermediate_size: Width of an expert.
        shared_intermediate_size: Width of the shared part; 0 without one.
        has_shared_gate: A one-wide gate on the shared part.
        has_bias: Experts and router have biases.
        is_gated: Experts have a gate beside up and down.
        latent_size: Width the experts work in where it is not the model's; 0 for the model's.
        num_router_rows: Router outputs, where more than the experts; 0 for as many.
        num_router_params: Parameters of the router beside its matrix.
    """

    num_experts: int
    num_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    has_shared_gate: bool = False
    has_bias: bool = False
    is_gated: bool = True
    latent_size: int = 0
    num_router_rows: int = 0
    num_router_params: int = 0


def experts_layer(dims: ExpertDims, hidden_size: int) -> LayerShape:
    """Return a mixture of experts: all are resident, `num_per_token` are read for a token."""
    width = dims.latent_size or hidden_size
    size = dims.intermediate_size
    weights = linear(
        "router", dims.num_router_rows or dims.num_experts, hidden_size, "none", dims.has_bias
    )
    if dims.num_router_params:
        weights += (Weight("router", dims.num_router_params),)
    matrices = [(size, width)] * (2 if dims.is_gated else 1) + [(width, size)]
    biases = [(rows, 1) for rows, _ in matrices] if dims.has_bias else []
    weights += tuple(
        Weight("experts", rows, columns, dims.num_experts, dims.num_per_token, "even")
        for rows, columns in matrices + biases
    )
    if dims.latent_size:
        weights += linear("mlp", width, hidden_size, "none")
        weights += linear("mlp", hidden_size, width, "none")
    if dims.shared_intermediate_size:
        weights += _mlp_weights(dims.shared_intermediate_size, hidden_size, dims.is_gated)
    if dims.has_shared_gate:
        weights += linear("router", 1, hidden_size, "none")
    shape = MlpShape(size, dims.num_experts, dims.num_per_token, dims.shared_intermediate_size)
    return LayerShape(mlp=shape, weights=weights)


def join(*parts: LayerShape) -> LayerShape:
    """Return the layer made of parts, of which each kind stands in at most one."""
    return LayerShape(
        attention=next((p.attention for p in parts if p.attention), None),
        cross=next((p.cross for p in parts if p.cross), None),
        state=next((p.state for p in parts if p.state), None),
        mlp=next((p.mlp for p in parts if p.mlp), None),
        weights=tuple(weight for part in parts for weight in part.weights),
    )
