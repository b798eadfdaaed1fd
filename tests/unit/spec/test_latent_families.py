"""Latent attention: the query's rank, and which layers have an indexer."""

from typing import Any

import pytest

from nanoserve.errors import UnsupportedModelError
from nanoserve.spec.param_count import count_parameters
from tests.shape_cases import EXPERTS, LATENT, tiny_shape

KEYS = {**LATENT, **EXPERTS}
INDEXED = {**KEYS, "index_n_heads": 2, "index_head_dim": 16}


def test_a_query_without_a_rank_is_projected_at_once() -> None:
    """A null rank leaves out the projection down and its norm."""
    with_rank = count_parameters(tiny_shape("deepseek_v3", **KEYS))
    without = count_parameters(tiny_shape("deepseek_v3", **KEYS | {"q_lora_rank": None}))

    assert with_rank.attention - without.attention == 4 * (24 * 64 + 96 * 24 - 96 * 64)
    assert with_rank.norms - without.norms == 4 * 24


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({}, [True] * 4),
        ({"index_topk_freq": 2}, [True, True, False, True]),
        ({"index_topk_pattern": "FSFS"}, [True, False] * 2),
        ({"indexer_types": ["full", "shared"] * 2}, [True, False] * 2),
    ],
)
def test_layers_may_reuse_an_earlier_layers_choice(
    changes: dict[str, Any], own: list[bool]
) -> None:
    """A layer without an indexer of its own keeps no key for it."""
    shape = tiny_shape("glm_moe_dsa", **INDEXED, **changes)

    widths = [layer.attention.index_dim for layer in shape.layers if layer.attention]
    assert widths == [16 if each else 0 for each in own]


def test_an_indexer_needs_a_compressed_query() -> None:
    """It is projected from it."""
    with pytest.raises(UnsupportedModelError, match="q_lora_rank"):
        tiny_shape("deepseek_v32", **INDEXED | {"q_lora_rank": None})


def test_longcats_layer_is_two() -> None:
    """Two attentions and two MLPs, of which the first stands beside the experts."""
    shape = tiny_shape("longcat_flash", **KEYS, zero_expert_num=4)

    count = count_parameters(shape)
    assert len(shape.layers) == 8
    assert count.mlp == 8 * 3 * 64 * 96
    assert count.experts == 4 * 8 * 3 * 64 * 32
    assert count.router == 4 * (8 + 4) * 64
