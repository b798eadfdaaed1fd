"""Recorded boots and people's short accounts of errors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.explain.boot_outcome import name_outcome
from nanoserve.explain.boot_record import boot_of_record, error_of_account
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.units import GIB


def test_figures_become_bytes() -> None:
    """GiB of a record are bytes of a boot; counts stay counts."""
    boot = boot_of_record(
        {
            "engine": "vllm",
            "gpu": {"name": "L4", "mem_gib": 22.0},
            "weights_gib": 7.5,
            "num_gpu_blocks": 100,
            "block_size": 16,
            "enforce_eager": True,
        }
    )

    assert boot.total_bytes == 22 * GIB
    assert boot.weight_bytes == 15 * GIB // 2
    assert boot.tokens == 1600
    assert boot.is_eager is True


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("aphrodite (vLLM fork)", "vllm"),
        ("nano-vllm (voxcpm fork)", "vllm"),
        ("ik_llama.cpp", "llama.cpp"),
        ("pegainfer", None),
    ],
)
def test_forks_are_taken_for_their_origin(name: str, engine: str | None) -> None:
    """A fork accounts as what it came from; an engine nobody knows is nobody's."""
    assert boot_of_record({"engine": name}).engine == engine


@pytest.mark.parametrize(
    ("text", "kind", "stage"),
    [
        ("CUDA graph capture failed, out of memory", "out of memory", "capture"),
        ("136 MiB allocation failed with 121 MiB free during capture", "out of memory", "capture"),
        ("OOM while loading weights: 29.39 GiB of 31.35", "out of memory", "weights"),
        ("out of memory while the KV cache was allocated", "out of memory", "pool"),
        ("no memory left for cache blocks", "no room for pool", "pool"),
        ("KV memory negative, engine refused", "no room for pool", "pool"),
        ("second instance refused: free 67.24 < 71.33", "free memory below utilization", "start"),
        ("131072 context larger than 95520 cacheable tokens", "request larger than pool", "pool"),
        ("out of memory after an upgrade", "unclear", None),
        ("it does not work", "unclear", None),
    ],
)
def test_accounts_of_errors(text: str, kind: str, stage: str | None) -> None:
    """The words people use name the error, or leave it open."""
    error = error_of_account(text)

    assert error is not None
    assert (error.kind, error.stage) == (kind, stage)


@pytest.mark.parametrize(
    ("text", "kind", "stage"),
    [
        (
            "max seq len 131072 is larger than the 60000 tokens the KV cache can hold",
            "request larger than pool",
            "pool",
        ),
        (
            "16.00 GiB KV needed for 131072 tokens, only 12.3 GiB free",
            "request larger than pool",
            "pool",
        ),
        ("model max length 32768 > 11232 KV tokens", "request larger than pool", "pool"),
        ("needs 5.0 GiB KV for 40960, has 3.2", "request larger than pool", "pool"),
        ("KV cache holds only 9000 tokens, context is 16384", "request larger than pool", "pool"),
        ("max_model_len 262144 does not fit the KV cache", "request larger than pool", "pool"),
        (
            "6.0 GiB KV cache is needed, larger than the available 4.1 GiB",
            "request larger than pool",
            "pool",
        ),
        ("one request of 40960 does not fit in the pool", "request larger than pool", "pool"),
        ("engine suggests max length 15984", "request larger than pool", "pool"),
        ("no available memory for the cache blocks", "no room for pool", "pool"),
        ("No memory left for KV cache after weights", "no room for pool", "pool"),
        ("KV cache memory is negative (-3.4 GiB)", "no room for pool", "pool"),
        ("num_gpu_blocks is 0", "no room for pool", "pool"),
        ("GPU blocks: 0", "no room for pool", "pool"),
        ("available KV cache memory -1.44 GiB", "no room for pool", "pool"),
        (
            "sglang: not enough memory, please try to increase mem_fraction_static",
            "no room for pool",
            "pool",
        ),
        ("max_total_num_tokens is negative", "no room for pool", "pool"),
        ("CUDA out of memory during cuda graph capture", "out of memory", "capture"),
        ("OOM while capturing CUDA graphs at 0.95", "out of memory", "capture"),
        ("graph capture failed: tried to allocate 64 MiB", "out of memory", "capture"),
        ("CUDA out of memory while loading weights", "out of memory", "weights"),
        ("OOM in load_model: tried to allocate 224 MiB, 22 GiB in use", "out of memory", "weights"),
        ("out of memory when loading model weights on a single card", "out of memory", "weights"),
        ("weights 61 GiB do not fit on one 48 GB card", "out of memory", "weights"),
        (
            "free memory 20.1 GiB less than desired 21.6 GiB at startup",
            "free memory below utilization",
            "start",
        ),
        ("model too large for GPU", "out of memory", "weights"),
        ("out of memory allocating the KV cache", "out of memory", "pool"),
        ("OOM while initialising KV cache tensors", "out of memory", "pool"),
        ("CUDA OOM in allocate_gpu_cache", "out of memory", "pool"),
        ("cuda out of memory when allocating the memory pool", "out of memory", "pool"),
    ],
)
def test_other_words_for_the_same(text: str, kind: str, stage: str) -> None:
    """Accounts that people may write of the same failures, none of them a recorded one."""
    error = error_of_account(text)

    assert error is not None
    assert (error.kind, error.stage) == (kind, stage)


@pytest.mark.parametrize(
    ("text", "kind", "stage"),
    [
        ("128k default context: 14.0 GiB KV, 11.9 available", "request larger than pool", "pool"),
        ("65536 needs 8.0 GiB, pool 6.2 GiB", "request larger than pool", "pool"),
        ("one sequence of 100000 exceeds KV capacity 53136", "request larger than pool", "pool"),
        ("context 262144 does not fit; suggested 34736", "request larger than pool", "pool"),
        ("32k context needs 6.0 GiB KV, 3.1 GiB free", "request larger than pool", "pool"),
        ("nothing left for KV cache after weights", "no room for pool", "pool"),
        ("available -0.31 GiB for KV", "no room for pool", "pool"),
        ("memory for KV cache is 0", "no room for pool", "pool"),
        ("available KV memory below zero", "no room for pool", "pool"),
        ("sampler warm-up OOM with 1024 dummy requests", "out of memory", "capture"),
        ("graph capture needs 1.2 GiB, 0.4 free", "out of memory", "capture"),
        ("OOM while creating weights, 448 MiB", "out of memory", "weights"),
        ("weights 130 GiB on 80 GiB card", "out of memory", "weights"),
        ("not enough memory to load the weights", "out of memory", "weights"),
        ("cudaMalloc failed for KV buffer of 4096 MiB", "out of memory", "pool"),
        (
            "free memory 31.44 of 47.38 GiB on startup is less than desired utilization 0.95",
            "free memory below utilization",
            "start",
        ),
        (
            "free 111.99 of 139.8 GiB, 132.81 wanted: refused",
            "free memory below utilization",
            "start",
        ),
        (
            "max_num_seqs 1024 exceeds available Mamba cache blocks 969",
            "too many requests for state",
            "pool",
        ),
        ("OOM at 0.97, none at 0.9", "unclear", None),
        ("not enough memory on 24 GB", "unclear", None),
    ],
)
def test_words_for_what_ran_out_and_for_what_was_refused(
    text: str, kind: str, stage: str | None
) -> None:
    """What ran out is asked before what was refused; where neither is said, nothing is guessed."""
    error = error_of_account(text)

    assert error is not None
    assert (error.kind, error.stage) == (kind, stage)


def test_numbers_of_an_account() -> None:
    """Sizes, the length asked for and the one that fits."""
    error = error_of_account("4.76 GiB needed for 65536, 1.56 available; estimate 15984")

    assert error is not None
    assert error.need_bytes == round(4.76 * GIB)
    assert error.have_bytes == round(1.56 * GIB)
    assert (error.need_tokens, error.fitting_len) == (65_536, 15_984)


def test_no_account_is_no_error() -> None:
    """A record that says nothing of an error has none."""
    assert error_of_account("") is None


@given(
    st.dictionaries(
        st.sampled_from(["gpu", "engine", "weights_gib", "kv_cache_tokens", "error_text_short"]),
        st.none() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    )
)
def test_any_object_is_a_record(record: dict[str, Any]) -> None:
    """Values of the wrong type count as absent."""
    boot = boot_of_record(record)

    assert isinstance(boot, LoggedBoot)
    name_outcome(boot)
