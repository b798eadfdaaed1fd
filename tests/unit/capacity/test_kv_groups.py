"""Layers in groups of one size over one pool of equal pages."""

from dataclasses import replace

from nanoserve.capacity.kv_groups import group_cache, hybrid_block_size, without_windows
from nanoserve.plan.kv_layout import CacheFormat, kv_request_bytes, state_bytes
from tests.shape_cases import DELTA, kinds_of, tiny_shape

CACHE = CacheFormat(max_num_batched_tokens=64)


def test_a_plain_model_is_one_group() -> None:
    """Its requests cost the sum of its layers."""
    shape = tiny_shape()
    groups = group_cache(shape, CACHE)

    assert (groups.group_size, groups.num_padding_layers) == (4, 0)
    assert groups.block_bytes == 4 * 16 * 2 * 2 * 16 * 2
    assert groups.request_bytes(100, CACHE) == kv_request_bytes(shape, 100, CACHE)


def test_groups_are_filled_up_with_padding_layers() -> None:
    """2 full and 5 sliding layers are groups of 2, of which one is padded."""
    names = ["full_attention"] * 2 + ["sliding_attention"] * 5
    shape = tiny_shape("qwen3", layer_types=names, num_hidden_layers=7, sliding_window=32)
    groups = group_cache(shape, CACHE)

    assert (groups.group_size, groups.num_padding_layers) == (2, 1)
    assert groups.request_blocks(1600, CACHE) == 100 + 3 * (6 + 1)


def test_buckets_nearly_as_large_take_the_largest() -> None:
    """4 and 3 layers are groups of 4, not of 3."""
    names = ["full_attention"] * 4 + ["sliding_attention"] * 3
    shape = tiny_shape("qwen3", layer_types=names, num_hidden_layers=7, sliding_window=32)

    assert group_cache(shape, CACHE).group_size == 4


def test_smaller_pages_take_larger_blocks() -> None:
    """Gemma 4's full layers keep half as much a token, and twice the tokens a page."""
    shape = tiny_shape(
        "gemma4_text",
        head_dim=32,
        global_head_dim=64,
        num_global_key_value_heads=1,
        num_key_value_heads=4,
        attention_k_eq_v=True,
        sliding_window=32,
        hidden_size_per_layer_input=0,
    )
    sliding, full = group_cache(shape, CACHE).buckets

    assert (sliding.block_size, full.block_size) == (16, 32)


def test_pages_that_do_not_divide_are_padded() -> None:
    """A smaller page that does not divide the larger keeps its block."""
    shape = tiny_shape("gemma2", head_dim=16, sliding_window=32)
    first = shape.layers[0]
    assert first.attention is not None
    odd = replace(first, attention=replace(first.attention, head_dim=24, v_head_dim=24))
    groups = group_cache(replace(shape, layers=(odd, *shape.layers[1:])), CACHE)

    assert {bucket.block_size for bucket in groups.buckets} == {16}
    assert groups.page_bytes == 16 * 2 * (24 + 24) * 2


def test_a_state_is_one_page() -> None:
    """The block grows to the state; a request has one page of it per group."""
    shape = tiny_shape("qwen3_5_text", **DELTA)
    state = shape.layers[0].state
    groups = group_cache(shape, CACHE)

    assert state is not None
    block_size = hybrid_block_size(shape, CACHE)
    assert groups.page_bytes == block_size * 2 * 2 * 16 * 2 >= state_bytes(state, CACHE)
    assert groups.request_blocks(block_size, CACHE) == 1 + 3


def test_a_model_without_attention_has_its_states() -> None:
    """A page is a state, and no length changes the blocks."""
    shape = tiny_shape("mamba2", num_heads=8, head_dim=16)
    state = shape.layers[0].state
    groups = group_cache(shape, CACHE)

    assert state is not None
    assert groups.page_bytes == state_bytes(state, CACHE)
    assert groups.request_blocks(1, CACHE) == groups.request_blocks(10_000, CACHE) == 1
    assert hybrid_block_size(shape, CACHE) == 16


def test_a_model_that_keeps_nothing_has_no_groups() -> None:
    """Without attention and state there is nothing to lay out."""
    groups = group_cache(replace(tiny_shape(), layers=()), CACHE)

    assert (groups.group_size, groups.block_bytes, groups.num_padding_layers) == (0, 0, 0)
    assert groups.request_bytes(100, CACHE) == 0


def test_a_state_may_be_held_more_than_once() -> None:
    """Aligned with blocks there are two, and one more per token guessed ahead."""
    shape = tiny_shape("mamba2", num_heads=8, head_dim=16)
    cache = CacheFormat(num_states=2, num_spec_tokens=3)

    assert group_cache(shape, cache).request_blocks(1, cache) == 5
    once = kv_request_bytes(shape, 1, CacheFormat(num_spec_tokens=3))
    assert kv_request_bytes(shape, 1, cache) == 2 * once


def test_cross_attention_is_a_bucket_of_its_own() -> None:
    """The encoder's tokens take blocks beside the decoder's."""
    shape = tiny_shape("mllama_text_model", cross_attention_layers=[1, 3])
    groups = group_cache(shape, CACHE)

    assert (len(groups.buckets), groups.group_size) == (2, 2)
    assert groups.request_blocks(160, CACHE, num_encoder_tokens=48) == 10 + 3


def test_without_windows_every_layer_keeps_all() -> None:
    """Sliding layers become full ones, and full ones stay."""
    shape = tiny_shape("gemma2", head_dim=16, sliding_window=32)
    states = tiny_shape("mamba2", num_heads=8, head_dim=16)

    assert kinds_of(without_windows(shape)) == ["full"] * 4
    assert without_windows(states) == states
