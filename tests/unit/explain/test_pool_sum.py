"""What a pool holds, and would hold after a change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.explain.logged_boot import LoggedBoot, LoggedError
from nanoserve.explain.pool_sum import PoolSum, pool_sum
from nanoserve.units import GIB

LONG = PoolSum(3 * GIB, 4 * GIB, 32_768)


def test_requests_and_tokens_follow_from_bytes() -> None:
    """3 GiB hold three quarters of a request of 4 GiB."""
    assert (LONG.concurrency, LONG.tokens, LONG.holds_a_request) == (0.75, 24_576, False)


def test_changes_are_worked_out_again() -> None:
    """More bytes, a shorter length or half the cache each make it fit."""
    assert LONG.with_more(GIB).holds_a_request
    assert LONG.with_length(24_576).holds_a_request
    assert not LONG.with_length(24_577).holds_a_request
    assert LONG.with_half_cache().concurrency == 1.5
    assert LONG.with_more(GIB).describe() == "pool 4.00 GiB holds 1.00 requests of 32,768 tokens"


def test_without_a_requests_size_a_pool_is_enough() -> None:
    """Nothing is promised of requests that nobody can size."""
    alone = PoolSum(GIB)

    assert (alone.concurrency, alone.tokens, alone.holds_a_request) == (None, None, True)
    assert not PoolSum(0).holds_a_request
    assert alone.with_length(100).describe() == "pool 1.00 GiB"


def test_a_refusal_compares_what_counts() -> None:
    """Need and have of a refusal win over lines printed before it."""
    error = LoggedError("request larger than pool", "", "pool", 4 * GIB, 3 * GIB, 32_768)
    found = pool_sum(LoggedBoot(engine="vllm", pool_bytes=5 * GIB, error=error))

    assert found == LONG


def test_a_pool_that_was_never_printed_follows_from_the_parts() -> None:
    """0.9 of 24 GiB less weights, context, activations and the graphs' estimate."""
    boot = LoggedBoot(
        engine="vllm",
        total_bytes=20 * GIB,
        utilization=0.9,
        weight_bytes=8 * GIB,
        non_torch_bytes=GIB,
        activation_bytes=2 * GIB,
        graph_estimate_bytes=GIB,
        is_graph_estimate_in_budget=True,
    )

    assert pool_sum(boot) == PoolSum(6 * GIB)


def test_sglangs_pool_is_of_what_was_free() -> None:
    """Free after loading, less the share of before that is kept free."""
    boot = LoggedBoot(
        engine="sglang", free_bytes=20 * GIB, loaded_free_bytes=5 * GIB, utilization=0.8
    )

    assert pool_sum(boot) == PoolSum(GIB)


def test_a_request_from_what_the_engine_counted() -> None:
    """From its concurrency, or from its tokens."""
    counted = LoggedBoot(engine="vllm", pool_bytes=6 * GIB, max_concurrency=1.5, max_model_len=8)
    tokens = LoggedBoot(engine="vllm", pool_bytes=6 * GIB, num_blocks=3, max_model_len=32)

    assert pool_sum(counted) == PoolSum(6 * GIB, 4 * GIB, 8)
    assert pool_sum(tokens) == PoolSum(6 * GIB, 4 * GIB, 32)


@pytest.mark.parametrize("engine", ["vllm", "sglang", None])
def test_without_figures_there_is_no_pool(engine: str | None) -> None:
    """An unknown part leaves the pool unknown."""
    assert pool_sum(LoggedBoot(engine=engine, total_bytes=GIB)) is None


@given(st.integers(-(2**40), 2**40), st.integers(1, 2**40), st.integers(1, 2**20))
def test_the_tokens_that_fit_do_fit(pool: int, request_bytes: int, length: int) -> None:
    """A length taken from the pool's tokens is held by it, but for a byte a token."""
    whole = PoolSum(pool, request_bytes, length)
    tokens = whole.tokens or 0
    if tokens > 1:
        shorter = whole.with_length(tokens - 1)

        assert shorter.request_bytes is not None
        assert shorter.request_bytes <= pool + 1
