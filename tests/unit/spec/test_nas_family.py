"""Nemotron-NAS: each layer is what its block says."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError
from nanoserve.spec.param_count import count_parameters
from tests.shape_cases import tiny_shape

NO_OP = {"no_op": True}
LINEAR = {"replace_with_linear": True}
HALF = {"n_heads_in_group": 2}
BLOCKS = [
    {"attention": HALF, "ffn": {"ffn_mult": 6.0}},
    {"attention": NO_OP, "ffn": NO_OP},
    {"attention": LINEAR, "ffn": LINEAR},
    {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 0.1}},
]


def test_each_layer_has_its_own_heads_and_width() -> None:
    """KV heads are query heads over the group; a width is rounded up to 256; pruned parts go."""
    shape = tiny_shape("nemotron-nas", block_configs=BLOCKS)
    count = count_parameters(shape)

    assert [a.attention.num_kv_heads if a.attention else 0 for a in shape.layers] == [2, 0, 0, 1]
    assert [a.mlp.intermediate_size if a.mlp else 0 for a in shape.layers] == [256, 0, 0, 256]
    assert count.attention == 64 * (64 + 2 * 32 + 64) + 64 * 64 + 64 * (64 + 2 * 16 + 64)
    assert count.mlp == 2 * 3 * 64 * 256 + 64 * 64
    assert count.norms == 7 * 64


@pytest.mark.parametrize(
    ("blocks", "match"),
    [
        (BLOCKS[:2], "block_configs is not a list of 4"),
        ([{"attention": HALF}] * 4, "no ffn"),
        ([3] * 4, "no attention"),
        ([{"attention": {"n_heads_in_group": 3}, "ffn": NO_OP}] * 4, "n_heads_in_group 3"),
        ([{"attention": NO_OP, "ffn": {"ffn_mult": -1}}] * 4, "ffn_mult"),
    ],
)
def test_damaged_blocks_are_refused(blocks: Any, match: str) -> None:
    """A block for every layer, with both parts, of sizes that divide."""
    with pytest.raises(CorruptFileError, match=match):
        tiny_shape("nemotron-nas", block_configs=blocks)
