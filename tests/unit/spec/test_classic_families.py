"""Older decoders: what their own keys change."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.param_count import count_parameters
from tests.shape_cases import tiny_shape

DBRX: dict[str, Any] = {
    "attn_config": {"kv_n_heads": 2},
    "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
}


def kv_heads(shape: ModelShape) -> int:
    attention = shape.layers[0].attention
    assert attention is not None
    return attention.num_kv_heads


@pytest.mark.parametrize(
    ("model_type", "changes", "heads"),
    [
        ("falcon", {}, 1),
        ("falcon", {"multi_query": False}, 4),
        ("falcon", {"new_decoder_architecture": True}, 2),
        ("gpt_bigcode", {}, 1),
        ("gpt_bigcode", {"multi_query": False}, 2),
        ("dbrx", DBRX, 2),
    ],
)
def test_multi_query_models_have_one_kv_head(
    model_type: str, changes: dict[str, Any], heads: int
) -> None:
    """Whatever the count of KV heads says, unless the config says otherwise."""
    assert kv_heads(tiny_shape(model_type, **changes)) == heads


@pytest.mark.parametrize(
    ("changes", "num_norms"),
    [
        ({}, 1),
        ({"parallel_attn": False}, 2),
        ({"new_decoder_architecture": True}, 2),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 1),
    ],
)
def test_falcons_norms_differ_by_generation(changes: dict[str, Any], num_norms: int) -> None:
    """One norm before parallel attention, two elsewhere, each with a bias."""
    norms = count_parameters(tiny_shape("falcon", **changes)).norms

    assert norms == (4 * num_norms + 1) * 2 * 64


def test_dbrx_keeps_its_experts_in_a_section() -> None:
    """Heads and experts stand in sections of their own."""
    count = count_parameters(tiny_shape("dbrx", **DBRX))

    assert count.experts == 4 * 4 * 3 * 64 * 48
    assert count.router == 4 * 4 * 64


def test_learned_positions_stand_with_the_embedding() -> None:
    """GPT-2 has a row per position, OPT two more."""
    positions = [
        count_parameters(tiny_shape(kind)).embedding - 128 * 64 for kind in ("gpt2", "opt")
    ]

    assert positions == [512 * 64, 514 * 64]


def test_an_mlp_is_four_times_as_wide_unless_stated() -> None:
    """MPT states a ratio, others nothing."""
    derived = tiny_shape("mpt", intermediate_size=None, expansion_ratio=3)

    assert derived.layers[0].mlp == tiny_shape("mpt", intermediate_size=192).layers[0].mlp


@pytest.mark.parametrize(
    ("model_type", "changes", "match"),
    [
        ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm"),
        ("dbrx", {"ffn_config": DBRX["ffn_config"]}, "attn_config"),
        ("dbrx", {"attn_config": DBRX["attn_config"]}, "ffn_config"),
    ],
)
def test_what_is_not_known_is_refused_by_key(
    model_type: str, changes: dict[str, Any], match: str
) -> None:
    """Variants whose weights are laid out otherwise."""
    with pytest.raises(UnsupportedModelError, match=match):
        tiny_shape(model_type, **changes)


def test_dbrx_heads_must_divide() -> None:
    """3 KV heads do not divide 4."""
    with pytest.raises(CorruptFileError, match="kv_n_heads 3"):
        tiny_shape("dbrx", **DBRX | {"attn_config": {"kv_n_heads": 3}})
