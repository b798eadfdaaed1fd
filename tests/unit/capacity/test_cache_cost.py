"""What requests cost in a pool, by hand for each way an engine divides it."""

from dataclasses import replace

import pytest

from nanoserve.capacity.cache_cost import CellCost, GroupedCost, SummedCost, cell_cost
from nanoserve.capacity.kv_groups import group_cache
from nanoserve.plan.kv_layout import CacheFormat, attention_bytes_per_token, state_bytes_per_request
from nanoserve.spec.kv_format import find_kv_format
from nanoserve.spec.model_shape import AttentionShape, LatentShape
from tests.shape_cases import DELTA, tiny_shape

CACHE = CacheFormat()
LLAMA = tiny_shape()  # 4 layers of 2 KV heads of 16: 512 bytes a token


def test_blocks_of_a_plain_model() -> None:
    """Ten blocks of 16 tokens: requests of 17 tokens take two each."""
    cost = GroupedCost(group_cache(LLAMA, CACHE), CACHE)
    pool = 10 * 16 * 512 + 5

    assert cost.request_bytes(17) == 2 * 16 * 512
    assert cost.requests(pool, 17).value == 5
    assert cost.concurrency(pool, 64).value == 2.5
    assert cost.tokens(pool, 64).value == 160


def test_cells_of_a_plain_model() -> None:
    """SGLang has a cell for each token."""
    cost = cell_cost(LLAMA, replace(CACHE, block_size=1))

    assert cost == CellCost(512)
    assert cost.tokens(512 * 100 + 511, 64).value == 100
    assert cost.requests(512 * 100, 30).value == 3


def test_windows_with_cells_of_their_own() -> None:
    """Full layers at 100 bytes, windows at 100 with 0.8 as many cells: 180 bytes a token."""
    cost = CellCost(100, 100, window=8)

    assert cost.tokens(1800, 64).value == 10
    assert cost.requests(1800, 10).value == 1  # eight cells of windows hold one request of eight
    assert cost.requests(18_000, 5).value == 16  # 80 cells of windows of 5


def test_states_take_nine_parts_of_nineteen() -> None:
    """Of 1,900 bytes 900 are states of 100: 9, three a request; the rest are cells."""
    cost = CellCost(10, state_bytes=100)

    assert cost.tokens(1900, 50).value == 100
    assert cost.requests(1900, 50).value == 2
    assert cost.requests(1900, 10).value == 3


def test_states_alone() -> None:
    """Without attention all of the pool are states."""
    cost = CellCost(0, state_bytes=100)

    assert cost.requests(1900, 10**6).value == 6
    assert cost.concurrency(1900, 10).value == 6
    assert cost.tokens(1900, 10).value == 60


def test_sums_of_layers() -> None:
    """The plain sum, whole blocks and states included."""
    hybrid = tiny_shape("qwen3_5_text", **DELTA)
    plain, mixed = SummedCost(LLAMA, CACHE), SummedCost(hybrid, CACHE)

    assert plain.requests(10 * 16 * 512, 17).value == 5
    assert plain.tokens(10 * 16 * 512, 32).value == 160
    assert mixed.request_bytes(0) == state_bytes_per_request(hybrid, CACHE) > 0
    assert mixed.request_bytes(16) - mixed.request_bytes(0) == 16 * 128  # one full layer of four


@pytest.mark.parametrize("cost", [CellCost(0), SummedCost(replace(LLAMA, layers=()), CACHE)])
def test_a_stage_without_caches_is_free(cost: CellCost | SummedCost) -> None:
    """Requests cost nothing where nothing is kept."""
    assert cost.is_free


@pytest.mark.parametrize("pool", [-1, 0])
def test_no_pool_holds_nothing(pool: int) -> None:
    """A pool that is not there holds no request and no token."""
    for cost in (GroupedCost(group_cache(LLAMA, CACHE), CACHE), CellCost(512)):
        assert cost.requests(pool, 16).value == 0
        assert cost.tokens(pool, 16).value == 0


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [("q8_0", 8 * 2 * 136), ("fp8_per_token_head", 8 * 2 * 132), ("nvfp4", 8 * 2 * 72)],
)
def test_formats_with_scales(name: str, num_bytes: int) -> None:
    """Eight KV heads of 128: blocks of 32 in 34 bytes, or a scale for each head."""
    attention = AttentionShape("full", 32, 8, 128, 128)
    cache = CacheFormat(kv_format=find_kv_format(name))

    assert attention_bytes_per_token(attention, cache) == num_bytes


def test_a_latent_with_scales() -> None:
    """fp8_ds_mla: 512 bytes, four scales and a rotary part in 16 bits."""
    attention = AttentionShape("mla", 128, 1, 192, 128, latent=LatentShape(512, 64))

    cache = CacheFormat(kv_format=find_kv_format("fp8_ds_mla"))
    assert attention_bytes_per_token(attention, cache) == 656
