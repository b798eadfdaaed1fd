"""Bytes and tokens of one layer, by the kind of what it keeps."""

from dataclasses import replace

import pytest

from nanoserve.plan.kv_layout import (
    CacheFormat,
    Holding,
    attention_bytes_per_token,
    full_bytes_per_token,
    growing_bytes_per_token,
    kv_request_bytes,
    state_bytes,
    state_bytes_per_request,
    tokens_held,
)
from nanoserve.spec.model_shape import AttentionShape, LatentShape, StateShape
from tests.shape_cases import tiny_shape

CACHE = CacheFormat(max_num_batched_tokens=64)
FULL = AttentionShape("full", 8, 4, 16, 16)
SLIDING = replace(FULL, kind="sliding", span=100)
CHUNKED = replace(FULL, kind="chunked", span=100)
CROSS = replace(FULL, kind="cross")
LATENT = AttentionShape("mla", 8, 1, 24, 16, latent=LatentShape(32, 8))
MAMBA2 = StateShape("mamba2", 8, 16, 4, 1, 4)


def test_key_and_value_widths_count_apart() -> None:
    """K and V of the KV heads, not of the query heads."""
    narrow = replace(FULL, v_head_dim=8)

    assert attention_bytes_per_token(FULL, CACHE) == 4 * (16 + 16) * 2
    assert attention_bytes_per_token(narrow, CACHE) == 4 * (16 + 8) * 2
    assert attention_bytes_per_token(FULL, CacheFormat(itemsize=1, tp=2)) == 2 * 32


def test_a_latent_is_one_vector_on_every_rank() -> None:
    """No factor of two, and no division by ranks."""
    assert attention_bytes_per_token(LATENT, CacheFormat(tp=4)) == (32 + 8) * 2


def test_an_indexers_key_is_fp8_with_scales() -> None:
    """A byte per value and a float32 per 128 of them, whatever K and V are stored in."""
    indexed = replace(LATENT, index_dim=128)

    assert attention_bytes_per_token(indexed, CACHE) == 40 * 2 + 132
    assert attention_bytes_per_token(indexed, CacheFormat(itemsize=1)) == 40 + 132


def test_a_layer_that_shares_takes_nothing() -> None:
    """It reads what another keeps."""
    assert attention_bytes_per_token(replace(FULL, shares_with=0), CACHE) == 0


@pytest.mark.parametrize(
    ("attention", "num_tokens", "holding", "held"),
    [
        (FULL, 1000, "steady", 1008),
        (FULL, 1000, "admitted", 1008),
        (LATENT, 17, "admitted", 32),
        (SLIDING, 1000, "steady", 112),
        (SLIDING, 10, "steady", 16),
        (SLIDING, 1000, "admitted", 176 + 16),
        (SLIDING, 10, "admitted", 16 + 16),
        (CHUNKED, 1000, "steady", 112),
        (CHUNKED, 1000, "admitted", 176),
        (CHUNKED, 10, "admitted", 16),
        (CROSS, 1000, "steady", 64),
        (CROSS, 10, "admitted", 64),
    ],
)
def test_tokens_held_by_kind(
    attention: AttentionShape, num_tokens: int, holding: Holding, held: int
) -> None:
    """Windows and chunks hold their span, while admitted also a step; cross, the encoder's."""
    assert tokens_held(attention, num_tokens, CACHE, holding, num_encoder_tokens=50) == held


@pytest.mark.parametrize(
    ("state", "cache", "num_bytes"),
    [
        (MAMBA2, CACHE, (128 + 2 * 4) * 3 * 2 + 128 * 4 * 2),
        (MAMBA2, CacheFormat(tp=2), (64 + 2 * 4) * 3 * 2 + 64 * 4 * 2),
        (replace(MAMBA2, dtype="float32"), CACHE, (128 + 2 * 4) * 3 * 2 + 128 * 4 * 4),
        (MAMBA2, CacheFormat(num_spec_tokens=2), (128 + 2 * 4) * 5 * 2 + 128 * 4 * 2),
        (StateShape("mamba1", 128, 1, 16, 0, 4), CACHE, 128 * 3 * 2 + 128 * 16 * 2),
        (
            StateShape("gated_delta_net", 4, 16, 8, 2, 4),
            CacheFormat(tp=2),
            (32 + 2 * 8) * 3 * 2 + 32 * 8 * 2,
        ),
    ],
)
def test_states_by_kind(state: StateShape, cache: CacheFormat, num_bytes: int) -> None:
    """The convolution and the recurrence, each in its dtype; the one group is on both ranks."""
    assert state_bytes(state, cache) == num_bytes


def test_a_models_bytes_are_the_sum_of_its_layers() -> None:
    """Two sliding and two full layers of a Gemma 2."""
    shape = tiny_shape("gemma2", head_dim=16, sliding_window=32)
    per_token = 2 * 2 * 16 * 2

    assert full_bytes_per_token(shape, CACHE) == 4 * per_token
    assert growing_bytes_per_token(shape, CACHE) == 2 * per_token
    assert kv_request_bytes(shape, 320, CACHE) == 2 * (320 + 32) * per_token
    assert state_bytes_per_request(shape, CACHE) == 0
