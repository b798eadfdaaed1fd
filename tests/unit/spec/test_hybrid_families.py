"""Hybrids: which layers recur, and the widths of their states."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.model_shape import StateShape
from nanoserve.spec.param_count import count_parameters
from tests.shape_cases import DELTA, EXPERTS, LATENT, kinds_of, tiny_shape

MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 4}
KIMI = {
    **LATENT,
    **EXPERTS,
    "q_lora_rank": None,
    "linear_attn_config": {
        "full_attn_layers": [2, 4],
        "kda_layers": [1, 3],
        "head_dim": 8,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
    },
}


@pytest.mark.parametrize(
    ("model_type", "changes", "kinds"),
    [
        ("qwen3_5_text", DELTA, ["gated_delta_net"] * 3 + ["full"]),
        (
            "qwen3_5_text",
            DELTA | {"layer_types": ["full_attention", "linear_attention"] * 2},
            ["full", "gated_delta_net"] * 2,
        ),
        ("bamba", MAMBA2 | {"attn_layer_indices": [1]}, ["mamba2", "full", "mamba2", "mamba2"]),
        (
            "granitemoehybrid",
            MAMBA2 | {"layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 32},
            ["mamba2", "full"] * 2,
        ),
        ("kimi_linear", KIMI, ["kda", "mla"] * 2),
    ],
)
def test_layers_recur_as_the_family_says(
    model_type: str, changes: dict[str, Any], kinds: list[str]
) -> None:
    """By interval, by list of layers counted from 0 or 1, by names."""
    assert kinds_of(tiny_shape(model_type, **changes)) == kinds


def test_a_delta_nets_state() -> None:
    """Value heads hold key width by value width; the convolution takes q, k and v."""
    state = tiny_shape("qwen3_5_text", **DELTA, mamba_ssm_dtype="float32").layers[0].state

    assert state == StateShape("gated_delta_net", 4, 16, 8, 2, 4, "float32")
    assert (state.inner_size, state.conv_channels) == (64, 64 + 2 * 2 * 8)


def test_falcon_h1_has_both_in_every_layer() -> None:
    """Attention and Mamba-2 stand side by side."""
    shape = tiny_shape("falcon_h1", **MAMBA2, mamba_d_ssm=128)

    assert all(layer.attention and layer.state for layer in shape.layers)


def test_a_granite_without_experts_has_its_shared_mlp() -> None:
    """No experts: the shared part is all there is."""
    names = {"layer_types": ["mamba", "attention"] * 2}
    shape = tiny_shape("granitemoehybrid", **MAMBA2, **names, shared_intermediate_size=32)

    count = count_parameters(shape)
    assert (count.experts, count.router, count.mlp) == (0, 0, 4 * 3 * 64 * 32)


@pytest.mark.parametrize(
    ("model_type", "changes", "match"),
    [
        ("kimi_linear", KIMI | {"linear_attn_config": {"num_heads": 4, "head_dim": 8}}, "must say"),
        ("qwen3_5_text", DELTA | {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
    ],
)
def test_unknown_layers_are_refused(model_type: str, changes: dict[str, Any], match: str) -> None:
    """A hybrid that does not say which layers attend, or has others, is refused."""
    with pytest.raises(UnsupportedModelError, match=match):
        tiny_shape(model_type, **changes)


def test_heads_must_make_the_channels() -> None:
    """Mamba-2 heads that do not add up to the expanded width are damaged."""
    with pytest.raises(CorruptFileError, match="mamba_n_heads 8 of 5"):
        tiny_shape("bamba", **MAMBA2 | {"mamba_d_head": 5})


@pytest.mark.parametrize("d_head", [None, "auto"])
def test_a_heads_width_may_be_derived(d_head: str | None) -> None:
    """Expanded width over heads, where it is not stated."""
    state = tiny_shape("bamba", **MAMBA2 | {"mamba_d_head": d_head}).layers[0].state

    assert state is not None
    assert state.head_dim == 2 * 64 // 8


def test_mambas_rank_may_be_derived() -> None:
    """A sixteenth of the width, or as stated."""
    derived = count_parameters(tiny_shape("mamba", time_step_rank="auto"))

    assert derived == count_parameters(tiny_shape("mamba", time_step_rank=4))
    assert derived != count_parameters(tiny_shape("mamba", time_step_rank=5))
