"""Attention of the mixtures that mix it: Llama 4, MiMo-V2, Step 3.5."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError
from nanoserve.spec.param_count import count_parameters
from tests.shape_cases import EXPERTS, kinds_of, tiny_shape

MIMO = {**EXPERTS, "sliding_window": 16, "head_dim": 24, "v_head_dim": 16}


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ["chunked"] * 3 + ["full"]),
        ({"no_rope_layers": []}, ["chunked"] * 3 + ["full"]),
        ({"no_rope_layers": [1, 0, 1, 0]}, ["chunked", "full"] * 2),
        ({"no_rope_layer_interval": 2}, ["chunked", "full"] * 2),
        ({"attention_chunk_size": None}, ["full"] * 4),
        ({"layer_types": ["chunked_attention", "full_attention"] * 2}, ["chunked", "full"] * 2),
    ],
)
def test_llama_4_chunks_its_rotary_layers(changes: dict[str, Any], kinds: list[str]) -> None:
    """A 1 in `no_rope_layers` means rotary positions, and those layers attend in chunks."""
    assert kinds_of(tiny_shape("llama4_text", **EXPERTS, **changes)) == kinds


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ["full"] + ["sliding"] * 3),
        ({"hybrid_layer_pattern": [0, 1, 0, 1]}, ["full", "sliding"] * 2),
        ({"layer_types": ["sliding_attention", "full_attention"] * 2}, ["sliding", "full"] * 2),
    ],
)
def test_mimo_v2_slides_most_layers(changes: dict[str, Any], kinds: list[str]) -> None:
    """By lists, or the first and every sixth is full."""
    assert kinds_of(tiny_shape("mimo_v2_flash", **MIMO, **changes)) == kinds


def test_mimo_v2_has_narrow_values_and_sinks() -> None:
    """V is narrower than K; sliding layers have more KV heads, and a sink per query head."""
    full, sliding, *_ = tiny_shape("mimo_v2_flash", **MIMO, swa_num_key_value_heads=4).layers

    assert full.attention is not None
    assert sliding.attention is not None
    assert (full.attention.head_dim, full.attention.v_head_dim) == (24, 16)
    assert (full.attention.num_kv_heads, sliding.attention.num_kv_heads) == (2, 4)
    sinks = [w.rows for w in sliding.weights if w.group == "attention" and w.columns == 1]
    assert sinks == [4]


def test_step_3_5_has_other_heads_where_it_slides() -> None:
    """The sliding layers have head counts of their own; each head has a gate."""
    names = ["full_attention", "sliding_attention"] * 2
    other = {"num_attention_heads": 6, "num_attention_groups": 3}
    keys = {**EXPERTS, "layer_types": names, "sliding_window": 16, "head_dim": 16}
    shape = tiny_shape("step3p5", **keys, attention_other_setting=other)
    full, sliding, *_ = shape.layers

    assert full.attention is not None
    assert sliding.attention is not None
    assert (full.attention.num_heads, full.attention.num_kv_heads) == (4, 2)
    assert (sliding.attention.num_heads, sliding.attention.num_kv_heads) == (6, 3)
    gates = 2 * 64 * (4 + 6)
    projections = 2 * 64 * 16 * (4 + 2 + 2 + 4 + 6 + 3 + 3 + 6)
    assert count_parameters(shape).attention == projections + gates


@pytest.mark.parametrize(
    ("model_type", "changes", "match"),
    [
        ("llama4_text", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("mimo_v2_flash", {"hybrid_layer_pattern": "0101"}, "hybrid_layer_pattern"),
    ],
)
def test_lists_of_another_length_are_refused(
    model_type: str, changes: dict[str, Any], match: str
) -> None:
    """A list has a value per layer."""
    with pytest.raises(CorruptFileError, match=match):
        tiny_shape(model_type, **{**MIMO, **changes})
