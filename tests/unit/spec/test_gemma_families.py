"""Gemma 3n and 4: shared K and V, wide heads, widths per layer."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError
from nanoserve.spec.param_count import count_parameters
from tests.shape_cases import EXPERTS, kinds_of, tiny_shape

GEMMA4 = {"sliding_window": 16, "head_dim": 16, "global_head_dim": 32}
NAMES = ["sliding_attention", "full_attention"] * 2
PLAIN = GEMMA4 | {"layer_types": NAMES, "hidden_size_per_layer_input": 0}


def test_shared_layers_read_the_last_of_their_kind() -> None:
    """The last two layers read the first two, and have no projections for K and V."""
    shape = tiny_shape("gemma4_text", **PLAIN, num_kv_shared_layers=2)
    attentions = [layer.attention for layer in shape.layers if layer.attention]

    assert [each.shares_with for each in attentions] == [None, None, 0, 1]
    own = 64 * 16 * (4 + 2 + 2 + 4) + 64 * 32 * (4 + 2 + 2 + 4)
    shared = 64 * 16 * (4 + 4) + 64 * 32 * (4 + 4)
    assert count_parameters(shape).attention == own + shared


def test_full_layers_of_gemma_4_are_wide_and_may_share_k_with_v() -> None:
    """Their heads are wider and fewer; the value is the key's projection, and cached apart."""
    shape = tiny_shape("gemma4_text", **PLAIN, attention_k_eq_v=True, num_global_key_value_heads=1)
    full = shape.layers[1].attention

    assert full is not None
    assert (full.num_kv_heads, full.head_dim, full.v_head_dim) == (1, 32, 32)
    sliding_size, full_size = 64 * 16 * (4 + 2 + 2 + 4), 64 * 32 * (4 + 1 + 4)
    assert count_parameters(shape).attention == 2 * (sliding_size + full_size)


def test_the_last_layer_of_gemma_4_is_full() -> None:
    """Whatever the interval says."""
    shape = tiny_shape("gemma4_text", **GEMMA4, hidden_size_per_layer_input=0)

    assert kinds_of(shape) == ["sliding"] * 3 + ["full"]


def test_shared_layers_may_have_a_double_mlp() -> None:
    """Where asked for, layers without K and V of their own are twice as wide."""
    shape = tiny_shape("gemma4_text", **PLAIN, num_kv_shared_layers=2, use_double_wide_mlp=True)

    widths = [layer.mlp.intermediate_size for layer in shape.layers if layer.mlp]
    assert widths == [96, 96, 192, 192]


def test_experts_stand_beside_the_mlp() -> None:
    """With the block enabled, each layer has both."""
    shape = tiny_shape("gemma4_text", **PLAIN, **EXPERTS, enable_moe_block=True)
    count = count_parameters(shape)

    assert count.mlp == 4 * 3 * 64 * 96
    assert count.experts == 4 * 8 * 3 * 64 * 32


def test_gemma_3n_may_state_a_width_per_layer() -> None:
    """A list of widths, or one for all."""
    keys = {"num_kv_shared_layers": 2, "layer_types": NAMES}
    listed = tiny_shape("gemma3n_text", **keys, intermediate_size=[96, 64, 96, 64])
    for_all = tiny_shape("gemma3n_text", **keys)

    assert [layer.mlp.intermediate_size for layer in listed.layers if layer.mlp] == [96, 64] * 2
    assert [layer.mlp.intermediate_size for layer in for_all.layers if layer.mlp] == [96] * 4


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"intermediate_size": [96]}, "intermediate_size"),
        ({"intermediate_size": [96, 0, 96, 96]}, "intermediate_size"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers 4"),
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers 3"),
    ],
)
def test_what_leaves_nothing_to_share_is_refused(changes: dict[str, Any], match: str) -> None:
    """A shared layer needs an earlier one of its kind; widths are one per layer."""
    with pytest.raises(CorruptFileError, match=match):
        tiny_shape("gemma3n_text", **{"layer_types": NAMES, "num_kv_shared_layers": 2} | changes)
