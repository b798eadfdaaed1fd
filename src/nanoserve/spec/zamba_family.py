"""Zamba 2: Mamba-2 throughout, and at some layers one of a few transformer blocks they share.

A block's weights are there once however often it is used; its K and V are kept at each use.
Source: transformers 5.24's modeling_zamba2; Glorioso et al. 2024 (arXiv 2411.15242).
"""

from nanoserve.spec.config_fields import MAX_LAYERS, MAX_WIDTH, ConfigFields
from nanoserve.spec.family import Family
from nanoserve.spec.model_shape import AttentionShape, LayerShape, StateShape, Weight
from nanoserve.spec.shape_fields import head_counts, hidden_size, num_layers, width
from nanoserve.spec.state_mixers import mamba2_layer
from nanoserve.spec.weight_parts import join, linear, mlp_layer, norm

_KINDS = ("mamba", "hybrid")
_INPUT_FACTOR = 2  # a block reads the layer's input beside the embedding


def _is_hybrid(fields: ConfigFields) -> list[bool]:
    names, count = fields.raw("layers_block_type"), num_layers(fields)
    if names is None:
        fields.fail_unsupported("layers_block_type", "it must say where the blocks are used.")
    if not isinstance(names, list) or len(names) != count:
        fields.fail_corrupt(f"layers_block_type is not a list of {count} names.")
    if any(name not in _KINDS for name in names):
        fields.fail_unsupported("layers_block_type", f"layers known here: {', '.join(_KINDS)}.")
    return [name == "hybrid" for name in names]


def _mixers(fields: ConfigFields) -> list[LayerShape]:
    size = hidden_size(fields)
    mamba = _mamba(fields)
    use = LayerShape(attention=_attention(fields), weights=linear("attention", size, size))
    return [join(mamba, use) if is_hybrid else mamba for is_hybrid in _is_hybrid(fields)]


def _mamba(fields: ConfigFields) -> LayerShape:
    size = hidden_size(fields)
    inner = fields.size("mamba_expand", 64, 2) * size
    num_heads = width(fields, "n_mamba_heads", 8)
    if inner % num_heads:
        fields.fail_corrupt(f"n_mamba_heads {num_heads} does not divide {inner} channels.")
    shape = StateShape(
        kind="mamba2",
        num_heads=num_heads,
        head_dim=inner // num_heads,
        state_size=width(fields, "mamba_d_state", 64),
        num_groups=width(fields, "mamba_ngroups", 1),
        conv_kernel=width(fields, "mamba_d_conv", 4),
    )
    has_bias = fields.flag("add_bias_linear")
    has_conv_bias = fields.flag("use_conv_bias", default=True)
    return mamba2_layer(shape, size, has_bias=has_bias, has_conv_bias=has_conv_bias)


def _attention(fields: ConfigFields) -> AttentionShape:
    num_heads, num_kv_heads = head_counts(fields)
    head_dim, rest = divmod(_INPUT_FACTOR * hidden_size(fields), num_heads)
    if rest:
        fields.fail_corrupt(f"num_attention_heads {num_heads} does not divide twice hidden_size.")
    return AttentionShape("full", num_heads, num_kv_heads, head_dim, head_dim)


def _blocks(fields: ConfigFields) -> tuple[Weight, ...]:
    """Return the shared blocks, and what each use adds to them at low rank."""
    size = hidden_size(fields)
    shape, inner = _attention(fields), width(fields, "intermediate_size")
    wide = _INPUT_FACTOR * size
    num_blocks = fields.size("num_mem_blocks", MAX_LAYERS, 1)
    mlp = mlp_layer(inner, size, has_bias=fields.flag("add_bias_linear"))
    block = (
        *linear("attention", shape.num_heads * shape.head_dim, wide),
        *linear("attention", shape.num_kv_heads * shape.head_dim, wide, "kv") * 2,
        *linear("attention", size, shape.num_heads * shape.head_dim),
        *mlp.weights,
        norm(wide),
        norm(size),
    )
    return block * num_blocks + _adapters(fields, wide) * sum(_is_hybrid(fields))


def _adapters(fields: ConfigFields, wide: int) -> tuple[Weight, ...]:
    rank = fields.size("adapter_rank", MAX_WIDTH, 128)
    size, inner = hidden_size(fields), width(fields, "intermediate_size")
    adapter = linear("mlp", rank, size, "none") + linear("mlp", 2 * inner, rank)
    if fields.flag("use_shared_attention_adapter"):
        low_rank = linear("attention", rank, wide, "none") + linear("attention", wide, rank)
        adapter += low_rank * 3
    return adapter


def _no_mlps(fields: ConfigFields) -> list[LayerShape]:
    return [LayerShape()] * num_layers(fields)


ZAMBA2 = Family(
    _mixers,
    _no_mlps,
    num_norms=1,
    extra=_blocks,
    defaults={"tie_word_embeddings": True, "max_position_embeddings": 4096},
)
