"""Multi-head latent attention: DeepSeek V2 to V3.2, Kimi K2, GLM-5, GLM-4.7-Flash, LongCat.

Source: the modelling files of transformers 5.24.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from nanoserve.spec.config_fields import MAX_LAYERS, ConfigFields
from nanoserve.spec.expert_mlps import ExpertStyle, expert_dims, expert_mlps
from nanoserve.spec.family import Family
from nanoserve.spec.model_shape import LayerShape
from nanoserve.spec.shape_fields import (
    MAX_EXPERTS,
    hidden_size,
    names_of_layers,
    num_layers,
    optional_width,
    width,
)
from nanoserve.spec.weight_parts import (
    LatentDims,
    experts_layer,
    join,
    latent_attention_layer,
    mlp_layer,
)

_DEEPSEEK_MLPS = expert_mlps(ExpertStyle(rule="first_k"))
_DEEPSEEK_V3 = {"q_lora_rank": 1536, "v_head_dim": 128, "first_k_dense_replace": 3}


def latent_dims(fields: ConfigFields) -> LatentDims:
    """Return the widths of a family's latent attention; a null `q_lora_rank` means none."""
    return LatentDims(
        num_heads=width(fields, "num_attention_heads"),
        q_lora_rank=optional_width(fields, "q_lora_rank"),
        kv_lora_rank=width(fields, "kv_lora_rank"),
        nope_dim=width(fields, "qk_nope_head_dim"),
        rope_dim=width(fields, "qk_rope_head_dim"),
        v_dim=width(fields, "v_head_dim"),
        has_bias=fields.flag("attention_bias"),
    )


def latent_layers(fields: ConfigFields) -> list[LayerShape]:
    """Return the same latent attention in every layer."""
    return [latent_attention_layer(latent_dims(fields), hidden_size(fields))] * num_layers(fields)


def _indexed_layers(num_index_heads: int, fields: ConfigFields) -> list[LayerShape]:
    """Return latent attention with an indexer, or an earlier layer's choice, in every layer."""
    dims = replace(
        latent_dims(fields),
        num_index_heads=width(fields, "index_n_heads", num_index_heads),
        index_dim=width(fields, "index_head_dim", 128),
    )
    if not dims.q_lora_rank:
        fields.fail_unsupported("q_lora_rank", "an indexer needs a compressed query.")
    size = hidden_size(fields)
    own = latent_attention_layer(dims, size)
    reused = latent_attention_layer(replace(dims, has_index_weights=False), size)
    return [own if has_own else reused for has_own in _has_own_indexer(fields)]


def _has_own_indexer(fields: ConfigFields) -> list[bool]:
    for key, full in (("indexer_types", "full"), ("index_topk_pattern", "F")):
        names = names_of_layers(fields, key, ("full", "shared", "F", "S"))
        if names is not None:
            return [name in (full, "full") for name in names]
    frequency = fields.size("index_topk_freq", MAX_LAYERS, 1)
    offset = fields.size("index_skip_topk_offset", MAX_LAYERS, 2, low=0)
    return [max(i - offset + 1, 0) % frequency == 0 for i in range(num_layers(fields))]


def _longcat_mixers(fields: ConfigFields) -> list[LayerShape]:
    """LongCat's layer is two attentions, two MLPs and one mixture: here two layers."""
    return [latent_attention_layer(latent_dims(fields), hidden_size(fields))] * (
        2 * num_layers(fields)
    )


def _longcat_mlps(fields: ConfigFields) -> list[LayerShape]:
    size = hidden_size(fields)
    dims = expert_dims(fields, ExpertStyle())
    num_zero = fields.size("zero_expert_num", MAX_EXPERTS, 0, low=0)
    experts = experts_layer(replace(dims, num_router_rows=dims.num_experts + num_zero), size)
    dense = mlp_layer(width(fields, "intermediate_size"), size)
    first = join(experts, dense)
    return [layer for _ in range(num_layers(fields)) for layer in (first, dense)]


def latent_family(first_k: int, **defaults: int) -> Family:
    """Return a family of latent attention and DeepSeek's experts."""
    return Family(
        latent_layers,
        _DEEPSEEK_MLPS,
        defaults={"first_k_dense_replace": first_k} | defaults,
    )


LATENT_FAMILIES: Mapping[str, Family] = {
    "deepseek_v2": latent_family(0, q_lora_rank=1536, v_head_dim=128),
    "deepseek_v3": Family(latent_layers, _DEEPSEEK_MLPS, defaults=_DEEPSEEK_V3),
    "deepseek_v32": Family(partial(_indexed_layers, 64), _DEEPSEEK_MLPS, defaults=_DEEPSEEK_V3),
    "glm_moe_dsa": Family(
        partial(_indexed_layers, 32),
        _DEEPSEEK_MLPS,
        defaults={"q_lora_rank": 2048, "first_k_dense_replace": 3},
    ),
    "glm4_moe_lite": latent_family(1, q_lora_rank=768, v_head_dim=256),
    "mistral4": latent_family(0, q_lora_rank=1024, v_head_dim=128),
    "longcat_flash": Family(_longcat_mixers, _longcat_mlps, defaults={"num_experts": 512}),
}
