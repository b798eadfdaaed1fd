"""Changes for llama.cpp."""

from dataclasses import replace

import pytest

from nanoserve.explain.logged_boot import LoggedBoot, LoggedError
from nanoserve.explain.offload_fixes import (
    fewer_layers,
    half_the_cache,
    shorter_context,
    smaller_pass,
)
from nanoserve.units import GIB

FAILED = LoggedBoot(
    engine="llama.cpp",
    free_bytes=20 * GIB,
    num_devices=1,
    weight_bytes=10 * GIB,
    max_model_len=131_072,
    micro_batch_tokens=2048,
    num_layers=40,
    num_device_layers=40,
    error=LoggedError("out of memory", "", "pool", need_bytes=16 * GIB),
)


def test_fewer_layers_of_weights_too_large() -> None:
    """40 GiB in 40 layers: 18 fill nine tenths of 20 GiB."""
    assert FAILED.error is not None
    fix = fewer_layers(replace(FAILED, error=replace(FAILED.error, need_bytes=40 * GIB)))

    assert fix is not None
    assert fix.change == "--n-gpu-layers 18"
    assert fix.effect == "18 of 40 layers take 18.00 GiB of 20.00 GiB"


def test_a_context_that_fits_beside_the_weights() -> None:
    """16 GiB into nine tenths of 10, in steps of 256 tokens."""
    fix = shorter_context(FAILED)

    assert fix is not None
    assert fix.change == "--ctx-size 73728"


def test_a_cache_of_eight_and_a_half_bits() -> None:
    """16 GiB become 8.5; where that is too much, nothing is offered."""
    fix = half_the_cache(FAILED)

    assert fix is not None
    assert fix.effect == (
        "the cache takes 8.50 GiB of 10.00 GiB; values in 8 bits need flash attention"
    )
    assert half_the_cache(replace(FAILED, weight_bytes=12 * GIB)) is None
    assert half_the_cache(replace(FAILED, kv_cache_dtype="q8_0")) is None


def test_fewer_rows_of_a_pass() -> None:
    """Compute buffers of 16 GiB are halved until they fit beside weights and cache."""
    fix = smaller_pass(replace(FAILED, pool_bytes=5 * GIB))

    assert fix is not None
    assert fix.change == "--ubatch-size 512"
    assert smaller_pass(replace(FAILED, micro_batch_tokens=64)) is None


@pytest.mark.parametrize("make", [fewer_layers, shorter_context, half_the_cache, smaller_pass])
@pytest.mark.parametrize("change", [{"num_devices": 2}, {"error": None}, {"engine": "vllm"}])
def test_of_several_cards_or_without_figures_nothing_is_promised(make, change) -> None:  # type: ignore[no-untyped-def]
    """A failed allocation is one card's, the figures are sums."""
    assert make(replace(FAILED, **change)) is None
