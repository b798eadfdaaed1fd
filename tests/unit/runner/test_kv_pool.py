"""`KVPool` allocates everything at once, zeroed."""

import pytest
import torch

from nanoserve.errors import InvariantError
from nanoserve.plan.kv_plan import kv_bytes_per_block
from nanoserve.runner.kv_pool import KVPool
from tests.tiny_models import CPU, tiny_spec


def test_a_pool_has_k_and_v_of_every_layer() -> None:
    """Each side of each layer is [num_blocks, block_size, K, D]."""
    pool = KVPool(tiny_spec(num_layers=3), 5, 4, torch.float32, CPU)

    assert len(pool.layers) == 3
    assert all(side.shape == (5, 4, 2, 8) for layer in pool.layers for side in layer)
    assert (pool.num_blocks, pool.block_size) == (5, 4)


def test_a_pool_knows_its_bytes() -> None:
    """Bytes are layers x 2 x blocks x slots x KV heads x head size x item size."""
    pool = KVPool(tiny_spec(num_layers=3), 5, 4, torch.bfloat16, CPU)

    assert pool.num_bytes == 3 * 2 * 5 * 4 * 2 * 8 * 2


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.int8, "int8"), (torch.float8_e4m3fn, "fp8"), (torch.float16, "auto")]
)
def test_a_pool_has_the_bytes_that_are_planned(dtype: torch.dtype, name: str) -> None:
    """Scales and sink block included, for every way to store K and V."""
    spec = tiny_spec(num_layers=3, num_kv_heads=2, head_dim=40)

    pool = KVPool(spec, 5, 4, dtype, CPU, num_sink_blocks=1)

    assert pool.num_bytes == (5 + 1) * kv_bytes_per_block(spec, 4, 2, name)


def test_a_new_pool_holds_zeros() -> None:
    """No slot of a new pool holds what the memory held before."""
    pool = KVPool(tiny_spec(), 5, 4, torch.float32, CPU)

    assert all(not side.any() for layer in pool.layers for side in layer)


def test_no_two_slots_share_memory() -> None:
    """A write to one side of one layer is seen nowhere else."""
    pool = KVPool(tiny_spec(), 5, 4, torch.float32, CPU)

    pool.layers[1][0].fill_(1.0)

    sums = [float(side.sum()) for layer in pool.layers for side in layer]
    assert sums == [0.0, 0.0, float(5 * 4 * 2 * 8), 0.0]


def test_a_sink_block_lies_behind_the_pool_and_counts_in_bytes() -> None:
    """It is one block more in every tensor, and none more for requests."""
    pool = KVPool(tiny_spec(), 5, 4, torch.float32, CPU, num_sink_blocks=1)

    assert (pool.num_blocks, pool.sink_block) == (5, 5)
    assert pool.layers[0][0].shape == (6, 4, 2, 8)
    assert pool.num_bytes == 2 * 2 * 6 * 4 * 2 * 8 * 4


def test_a_pool_without_a_sink_block_names_none() -> None:
    """Asking for one is a mistake in the wiring, not a block of somebody."""
    pool = KVPool(tiny_spec(), 5, 4, torch.float32, CPU)

    with pytest.raises(InvariantError, match="5 blocks has no sink"):
        _ = pool.sink_block
