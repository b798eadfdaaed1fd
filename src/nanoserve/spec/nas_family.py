"""Nemotron-NAS (DeciLM): a Llama whose layers were pruned one by one, as `block_configs` says.

A layer may have no attention, or fewer KV heads than the others, and an MLP of its own width.
Source: modeling_decilm.py of nvidia/Llama-3_3-Nemotron-Super-49B-v1; vLLM 0.32's nemotron_nas.
"""

from typing import Any

from nanoserve.spec.config_fields import ConfigFields
from nanoserve.spec.family import Family
from nanoserve.spec.model_shape import AttentionShape, LayerShape
from nanoserve.spec.shape_fields import head_dim, hidden_size, num_layers, width
from nanoserve.spec.weight_parts import (
    AttentionExtras,
    attention_layer,
    join,
    linear,
    mlp_layer,
    norm_layer,
)
from nanoserve.units import round_up

_WIDTH_MULTIPLE = 256


def _blocks(fields: ConfigFields, part: str) -> list[ConfigFields]:
    """Return the `attention` or `ffn` section of every layer."""
    blocks, count = fields.raw("block_configs"), num_layers(fields)
    if blocks is None:
        fields.fail_unsupported("block_configs", "it must say what each layer is.")
    if not isinstance(blocks, list) or len(blocks) != count:
        fields.fail_corrupt(f"block_configs is not a list of {count} layers.")
    return [_section(fields, block, part) for block in blocks]


def _section(fields: ConfigFields, block: Any, part: str) -> ConfigFields:
    section = block.get(part) if isinstance(block, dict) else None
    if not isinstance(section, dict):
        fields.fail_corrupt(f"a layer of block_configs has no {part}.")
    return ConfigFields(section, fields.path)


def _mixers(fields: ConfigFields) -> list[LayerShape]:
    num_heads = width(fields, "num_attention_heads")
    size = head_dim(fields, num_heads)
    return [_mixer(fields, block, num_heads, size) for block in _blocks(fields, "attention")]


def _mixer(fields: ConfigFields, block: ConfigFields, num_heads: int, size: int) -> LayerShape:
    if block.flag("no_op"):
        return LayerShape()
    hidden = hidden_size(fields)
    if block.flag("replace_with_linear"):
        plain = LayerShape(weights=linear("attention", hidden, hidden))
        return join(plain, norm_layer(hidden))
    group = block.size("n_heads_in_group", num_heads)
    if num_heads % group:
        fields.fail_corrupt(f"n_heads_in_group {group} does not divide {num_heads} heads.")
    shape = AttentionShape("full", num_heads, num_heads // group, size, size)
    return join(attention_layer(shape, hidden, AttentionExtras()), norm_layer(hidden))


def _mlps(fields: ConfigFields) -> list[LayerShape]:
    return [_mlp(hidden_size(fields), block) for block in _blocks(fields, "ffn")]


def _mlp(hidden: int, block: ConfigFields) -> LayerShape:
    if block.flag("no_op"):
        return LayerShape()
    if block.flag("replace_with_linear"):
        return join(LayerShape(weights=linear("mlp", hidden, hidden)), norm_layer(hidden))
    scaled = int(2 * min(block.positive("ffn_mult"), 1024.0) * hidden / 3)
    return join(mlp_layer(round_up(scaled, _WIDTH_MULTIPLE), hidden), norm_layer(hidden))


NEMOTRON_NAS = Family(_mixers, _mlps, num_norms=0)
