"""Zamba 2: shared blocks count once, and keep K and V at each use."""

from typing import Any

import pytest

from nanoserve.errors import CorruptFileError, UnsupportedModelError
from nanoserve.spec.param_count import count_parameters
from tests.shape_cases import tiny_shape

ZAMBA = {"n_mamba_heads": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "adapter_rank": 8}
ADAPTER = 8 * 64 + 2 * 96 * 8


def test_a_block_is_there_once_and_used_twice() -> None:
    """Two layers keep K and V; the MLP is one, and each use has an adapter of its own."""
    shape = tiny_shape("zamba2", **ZAMBA)

    assert [layer.attention is not None for layer in shape.layers] == [False, True] * 2
    assert all(layer.state for layer in shape.layers)
    assert count_parameters(shape).mlp == 3 * 64 * 96 + 2 * ADAPTER


def test_its_heads_are_twice_as_wide() -> None:
    """A block reads the embedding beside the layer's input."""
    attention = tiny_shape("zamba2", **ZAMBA).layers[1].attention

    assert attention is not None
    assert attention.head_dim == 2 * 64 // 4


def test_more_blocks_and_adapters() -> None:
    """Two blocks have two MLPs; attention adapters come on q, k and v of each use."""
    plain = count_parameters(tiny_shape("zamba2", **ZAMBA))
    more = tiny_shape("zamba2", **ZAMBA, num_mem_blocks=2, use_shared_attention_adapter=True)

    count = count_parameters(more)
    block = 128 * (128 + 64 + 64) + 64 * 128
    assert count.mlp - plain.mlp == 3 * 64 * 96
    assert count.attention - plain.attention == block + 2 * 3 * 2 * 8 * 128


@pytest.mark.parametrize("names", [None, ["mamba", "odd"] * 2])
def test_it_must_say_where_blocks_are_used(names: Any) -> None:
    """Without the list, or with other names, it is refused by its key."""
    with pytest.raises(UnsupportedModelError, match="layers_block_type"):
        tiny_shape("zamba2", **ZAMBA | {"layers_block_type": names})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layers_block_type": ["mamba"]}, "layers_block_type is not a list of 4"),
        ({"n_mamba_heads": 3}, "n_mamba_heads 3"),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "num_attention_heads 3"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(changes: dict[str, Any], match: str) -> None:
    """Channels over heads, twice the width over heads, a name per layer."""
    with pytest.raises(CorruptFileError, match=match):
        tiny_shape("zamba2", **ZAMBA | changes)
