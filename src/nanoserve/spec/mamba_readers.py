"""Mamba mixers from the keys that families spell in three ways.

Owns key names and derived widths; the weights are in `state_mixers`.
"""

from collections.abc import Mapping

from nanoserve.spec.config_fields import ConfigFields
from nanoserve.spec.model_shape import LayerShape, StateShape
from nanoserve.spec.shape_fields import hidden_size, num_layers, optional_width, width
from nanoserve.spec.state_mixers import mamba1_layer, mamba2_layer


def _mamba1(
    fields: ConfigFields, keys: Mapping[str, str], has_inner_norms: bool = False
) -> LayerShape:
    """Return a Mamba-1 mixer; `keys` spells the family's keys."""
    size = hidden_size(fields)
    rank_key = keys["rank"]
    is_auto = fields.raw(rank_key) in (None, "auto")
    inner = fields.size(keys["expand"], 64, 2) * size
    shape = StateShape(
        kind="mamba1",
        num_heads=inner,
        head_dim=1,
        state_size=width(fields, keys["state"], 16),
        num_groups=0,
        conv_kernel=width(fields, keys["conv"], 4),
    )
    return mamba1_layer(
        shape,
        size,
        -(-size // 16) if is_auto else width(fields, rank_key),
        has_bias=fields.flag(keys["bias"]),
        has_conv_bias=fields.flag(keys["conv_bias"], default=True),
        has_inner_norms=has_inner_norms,
    )


_MAMBA_KEYS = {
    "rank": "time_step_rank",
    "expand": "expand",
    "state": "state_size",
    "conv": "conv_kernel",
    "conv_bias": "use_conv_bias",
    "bias": "use_bias",
}
_JAMBA_KEYS = {
    "rank": "mamba_dt_rank",
    "expand": "mamba_expand",
    "state": "mamba_d_state",
    "conv": "mamba_d_conv",
    "conv_bias": "mamba_conv_bias",
    "bias": "mamba_proj_bias",
}


def jamba_mamba(fields: ConfigFields) -> LayerShape:
    """Return Jamba's Mamba-1 mixer, with norms on dt, B and C."""
    return _mamba1(fields, _JAMBA_KEYS, has_inner_norms=True)


def mamba1_layers(fields: ConfigFields) -> list[LayerShape]:
    """Return the layers of a pure Mamba-1 model."""
    return [_mamba1(fields, _MAMBA_KEYS)] * num_layers(fields)


def mamba2_layers(fields: ConfigFields) -> list[LayerShape]:
    """Return the layers of a pure Mamba-2 model."""
    shape = StateShape(
        kind="mamba2",
        num_heads=width(fields, "num_heads", 128),
        head_dim=width(fields, "head_dim", 64),
        state_size=width(fields, "state_size", 128),
        num_groups=width(fields, "n_groups", 8),
        conv_kernel=width(fields, "conv_kernel", 4),
    )
    has_conv_bias = fields.flag("use_conv_bias", default=True)
    layer = mamba2_layer(
        shape,
        hidden_size(fields),
        has_bias=fields.flag("use_bias"),
        has_conv_bias=has_conv_bias,
    )
    return [layer] * num_layers(fields)


def prefixed_mamba2(fields: ConfigFields, has_norm: bool = True) -> LayerShape:
    """Return the Mamba-2 mixer of the hybrids that spell its keys `mamba_…`."""
    inner = optional_width(fields, "mamba_d_ssm")
    if not inner:
        inner = fields.size("mamba_expand", 64, 2) * hidden_size(fields)
    heads = width(fields, "mamba_n_heads", 128)
    is_auto = fields.raw("mamba_d_head") in (None, "auto")
    head_dim = inner // heads if is_auto else width(fields, "mamba_d_head")
    if heads * head_dim != inner:
        fields.fail_corrupt(f"mamba_n_heads {heads} of {head_dim} do not make {inner} channels.")
    shape = StateShape(
        kind="mamba2",
        num_heads=heads,
        head_dim=head_dim,
        state_size=width(fields, "mamba_d_state", 256),
        num_groups=width(fields, "mamba_n_groups", 1),
        conv_kernel=width(fields, "mamba_d_conv", 4),
    )
    return mamba2_layer(
        shape,
        hidden_size(fields),
        has_bias=fields.flag("mamba_proj_bias"),
        has_conv_bias=fields.flag("mamba_conv_bias", default=True),
        has_norm=has_norm,
    )
