"""Nemotron-H: one mixer a layer, as a pattern of letters says; its experts may work in a latent.

Source: transformers 5.24's modeling_nemotron_h; the state in float32, vLLM 0.32.
"""

from dataclasses import replace

from nanoserve.spec.config_fields import MAX_LAYERS, ConfigFields
from nanoserve.spec.expert_mlps import ExpertStyle, expert_dims
from nanoserve.spec.family import (
    AttentionStyle,
    Family,
    attention_extras,
    attention_shape,
)
from nanoserve.spec.model_shape import LayerShape, StateShape
from nanoserve.spec.shape_fields import hidden_size, optional_width, state_dtype, width
from nanoserve.spec.state_mixers import mamba2_layer
from nanoserve.spec.weight_parts import attention_layer, experts_layer, mlp_layer

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NAMES = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}
_STYLE = AttentionStyle(qkv_bias="attention_bias", output_bias="attention_bias")
_EXPERTS = ExpertStyle(shared_key="moe_shared_expert_intermediate_size")


def _layers(fields: ConfigFields) -> list[LayerShape]:
    readers = {"mamba": _mamba, "attention": _attention, "mlp": _mlp, "moe": _moe}
    names = _layer_names(fields)
    fields.skip("num_experts", "moe_latent_size")  # stated for models without experts, too
    layer_of = {name: readers[name](fields) for name in dict.fromkeys(names)}
    return [layer_of[name] for name in names]


def _layer_names(fields: ConfigFields) -> list[str]:
    key, known = "hybrid_override_pattern", _LETTERS
    if not fields.has(key) and fields.has("layers_block_type"):
        key, known = "layers_block_type", _NAMES
    names = fields.raw(key)
    if names is None:
        fields.fail_unsupported(key, "it must say what each layer is.")
    if not isinstance(names, list | str) or not 0 < len(names) <= MAX_LAYERS:
        fields.fail_corrupt(f"{key} is not a list of layers.")
    if any(not isinstance(name, str) or name not in known for name in names):
        fields.fail_unsupported(key, f"layers known here: {', '.join(known)}.")
    return [known[name] for name in names]


def _mamba(fields: ConfigFields) -> LayerShape:
    shape = StateShape(
        kind="mamba2",
        num_heads=width(fields, "mamba_num_heads"),
        head_dim=width(fields, "mamba_head_dim"),
        state_size=width(fields, "ssm_state_size", 128),
        num_groups=width(fields, "n_groups", 8),
        conv_kernel=width(fields, "conv_kernel", 4),
        dtype=state_dtype(fields, "mamba_ssm_cache_dtype", "float32"),
    )
    return mamba2_layer(
        shape,
        hidden_size(fields),
        has_bias=fields.flag("use_bias") or fields.flag("mamba_proj_bias"),
        has_conv_bias=fields.flag("use_conv_bias", default=True),
    )


def _attention(fields: ConfigFields) -> LayerShape:
    shape = attention_shape(fields, "full")
    return attention_layer(shape, hidden_size(fields), attention_extras(fields, _STYLE, shape))


def _mlp(fields: ConfigFields) -> LayerShape:
    size = width(fields, "intermediate_size")
    has_bias = fields.flag("mlp_bias")
    return mlp_layer(size, hidden_size(fields), is_gated=False, has_bias=has_bias)


def _moe(fields: ConfigFields) -> LayerShape:
    dims = replace(
        expert_dims(fields, _EXPERTS),
        is_gated=False,
        latent_size=optional_width(fields, "moe_latent_size"),
    )
    return experts_layer(dims, hidden_size(fields))


def _no_mlps(fields: ConfigFields) -> list[LayerShape]:
    return [LayerShape()] * len(_layer_names(fields))


NEMOTRON_H = Family(
    _layers,
    _no_mlps,
    num_norms=1,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "moe_shared_expert_intermediate_size": 7688,
    },
)
