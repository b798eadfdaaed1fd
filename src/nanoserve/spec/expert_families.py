"""Mixtures of experts over grouped-query attention: Mixtral, Qwen-MoE, gpt-oss, Llama 4 and more.

Source: the modelling files of transformers 5.24; the layers that slide, of vLLM 0.32.
"""

from collections.abc import Mapping
from dataclasses import replace

from nanoserve.spec.config_fields import MAX_LAYERS, MAX_WIDTH, ConfigFields
from nanoserve.spec.expert_mlps import ExpertStyle, expert_mlps
from nanoserve.spec.family import (
    AttentionStyle,
    Family,
    attention_extras,
    attention_shape,
    grouped_query,
)
from nanoserve.spec.model_shape import LayerShape
from nanoserve.spec.shape_fields import hidden_size, layer_kinds, num_layers, width
from nanoserve.spec.weight_parts import AttentionExtras, attention_layer

_BY_KEY = AttentionStyle(qkv_bias="attention_bias", output_bias="attention_bias")
_HEAD_NORM = replace(_BY_KEY, qk_norm="head")
_QWEN3_MOE = Family(
    grouped_query(replace(_HEAD_NORM, pattern="qwen")),
    expert_mlps(ExpertStyle(rule="step")),
    defaults={"num_key_value_heads": 4, "sliding_window": 4096},
)
_MIXTRAL_MLPS = expert_mlps(ExpertStyle(width_key="intermediate_size"))


def _llama4_attention(fields: ConfigFields) -> list[LayerShape]:
    """Chunked attention in the layers with rotary positions, full in the others."""
    kinds = layer_kinds(fields, "none")
    if not fields.has("layer_types") and fields.has("attention_chunk_size"):
        kinds = ["chunked" if has_rope else "full" for has_rope in _rope_layers(fields)]
    size = hidden_size(fields)
    has_bias = fields.flag("attention_bias")
    extras = AttentionExtras(has_bias, has_bias)  # its norm on q and k has no parameters
    return [attention_layer(attention_shape(fields, kind), size, extras) for kind in kinds]


def _rope_layers(fields: ConfigFields) -> list[bool]:
    count = num_layers(fields)
    stated = fields.raw("no_rope_layers")  # 1 means rotary, whatever the name says
    if stated:
        if not isinstance(stated, list) or len(stated) != count:
            fields.fail_corrupt(f"no_rope_layers is not a list of {count} values.")
        return [bool(value) for value in stated]
    interval = fields.size("no_rope_layer_interval", MAX_LAYERS, 4)
    return [(i + 1) % interval != 0 for i in range(count)]


def _mimo_v2_attention(fields: ConfigFields) -> list[LayerShape]:
    """Full layers with few KV heads, sliding ones with more and with sinks; V narrower than K."""
    count = num_layers(fields)
    kinds = ["full" if i == 0 or (i + 1) % 6 == 0 else "sliding" for i in range(count)]
    if fields.has("layer_types"):
        kinds = layer_kinds(fields, "none")
    elif fields.has("hybrid_layer_pattern"):
        kinds = _mimo_pattern(fields, count)
    layers = {kind: _mimo_v2_layer(fields, kind) for kind in dict.fromkeys(kinds)}
    return [layers[kind] for kind in kinds]


def _mimo_pattern(fields: ConfigFields, count: int) -> list[str]:
    pattern = fields.raw("hybrid_layer_pattern")
    if not isinstance(pattern, list) or len(pattern) != count:
        fields.fail_corrupt(f"hybrid_layer_pattern is not a list of {count} values.")
    return ["sliding" if value == 1 else "full" for value in pattern]


def _mimo_v2_layer(fields: ConfigFields, kind: str) -> LayerShape:
    shape = attention_shape(fields, kind)
    shape = replace(shape, v_head_dim=width(fields, "v_head_dim"))
    if kind == "sliding":
        num_kv_heads = fields.size("swa_num_key_value_heads", MAX_WIDTH, 2 * shape.num_kv_heads)
        shape = replace(shape, num_kv_heads=num_kv_heads)
    has_bias = fields.flag("attention_bias")
    extras = AttentionExtras(has_bias, has_sinks=kind == "sliding")
    return attention_layer(shape, hidden_size(fields), extras)


def _step_attention(fields: ConfigFields) -> list[LayerShape]:
    """Head-wise gated attention; the sliding layers may have another number of heads."""
    kinds = layer_kinds(fields, "none")
    layers = {kind: _step_layer(fields, kind) for kind in dict.fromkeys(kinds)}
    return [layers[kind] for kind in kinds]


def _step_layer(fields: ConfigFields, kind: str) -> LayerShape:
    shape = attention_shape(fields, kind)
    other = fields.section("attention_other_setting")
    if kind == "sliding" and other is not None:
        num_heads = width(other, "num_attention_heads", shape.num_heads)
        num_kv_heads = width(other, "num_attention_groups", shape.num_kv_heads)
        shape = replace(shape, num_heads=num_heads, num_kv_heads=num_kv_heads)
    style = replace(_HEAD_NORM, gate="head")
    return attention_layer(shape, hidden_size(fields), attention_extras(fields, style, shape))


EXPERT_FAMILIES: Mapping[str, Family] = {
    "mixtral": Family(
        grouped_query(AttentionStyle(pattern="all")),
        _MIXTRAL_MLPS,
        defaults={"num_key_value_heads": 8, "num_experts_per_tok": 2, "num_experts": 8},
    ),
    "phimoe": Family(
        grouped_query(replace(_BY_KEY, pattern="all")),
        _MIXTRAL_MLPS,
        has_norm_bias=True,
        has_head_bias="lm_head_bias",
        defaults={"num_key_value_heads": 8, "num_experts_per_tok": 2, "num_experts": 16},
    ),
    "granitemoe": Family(grouped_query(_BY_KEY), _MIXTRAL_MLPS),
    "granitemoeshared": Family(
        grouped_query(_BY_KEY),
        expert_mlps(
            ExpertStyle(width_key="intermediate_size", shared_key="shared_intermediate_size")
        ),
    ),
    "olmoe": Family(
        grouped_query(replace(_BY_KEY, qk_norm="heads")),
        _MIXTRAL_MLPS,
        defaults={"num_experts_per_tok": 8, "num_experts": 64},
    ),
    "qwen2_moe": Family(
        grouped_query(AttentionStyle(qkv_bias="qkv_bias", pattern="qwen")),
        expert_mlps(
            ExpertStyle(
                rule="step",
                shared_key="shared_expert_intermediate_size",
                has_shared_gate=True,
            )
        ),
        defaults={"num_key_value_heads": 16, "qkv_bias": True, "num_experts_per_tok": 4},
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_omni_moe_text": _QWEN3_MOE,
    "gpt_oss": Family(
        grouped_query(AttentionStyle(qkv_bias=True, output_bias=True, has_sinks=True, pattern=2)),
        expert_mlps(ExpertStyle(width_key="intermediate_size", has_bias=True)),
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
        },
    ),
    "glm4_moe": Family(
        grouped_query(
            AttentionStyle(qkv_bias="attention_bias", qk_norm="head", qk_norm_key="use_qk_norm")
        ),
        expert_mlps(ExpertStyle(rule="first_k", num_shared=1)),
        defaults={"num_key_value_heads": 8, "head_dim": 128, "first_k_dense_replace": 1},
    ),
    "dots1": Family(grouped_query(_HEAD_NORM), expert_mlps(ExpertStyle(rule="first_k"))),
    "exaone_moe": Family(
        grouped_query(AttentionStyle(qk_norm="head", pattern=4)),
        expert_mlps(ExpertStyle(rule="first_k", num_shared=1)),
        defaults={"first_k_dense_replace": 1},
    ),
    "minimax_m2": Family(
        grouped_query(AttentionStyle(qk_norm="heads")),
        _MIXTRAL_MLPS,
        defaults={"num_key_value_heads": 8, "head_dim": 128},
    ),
    "minimax_m3_vl_text": Family(
        grouped_query(AttentionStyle(qk_norm="head")),
        expert_mlps(
            ExpertStyle(
                width_key="intermediate_size",
                dense_key="dense_intermediate_size",
                shared_key="shared_intermediate_size",
            )
        ),
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 128,
            "dense_intermediate_size": 12288,
            "shared_intermediate_size": 3072,
        },
    ),
    "ernie4_5_moe": Family(
        grouped_query(AttentionStyle(qkv_bias="use_bias", output_bias="use_bias")),
        expert_mlps(ExpertStyle(rule="range", has_score_bias=True, mlp_bias="use_bias")),
        defaults={"num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "mimo_v2_flash": Family(
        _mimo_v2_attention,
        expert_mlps(ExpertStyle(rule="first_k")),
        defaults={"head_dim": 192, "v_head_dim": 128, "first_k_dense_replace": 1},
    ),
    "llama4_text": Family(
        _llama4_attention,
        expert_mlps(
            ExpertStyle(
                width_key="intermediate_size",
                dense_key="intermediate_size_mlp",
                rule="interleave",
                shared_key="intermediate_size",
            )
        ),
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size_mlp": 16384,
            "attention_chunk_size": 8192,
            "num_experts_per_tok": 1,
        },
    ),
    "step3p5": Family(
        _step_attention,
        expert_mlps(ExpertStyle(rule="listed", shared_key="share_expert_dim")),
        defaults={"num_key_value_heads": 8, "head_dim": 128, "share_expert_dim": 1280},
    ),
}
