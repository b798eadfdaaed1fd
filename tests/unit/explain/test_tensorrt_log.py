"""TensorRT-LLM's logs, lines as it prints them."""

import pytest

from nanoserve.explain.log_format import read_log
from nanoserve.explain.log_text import plain_log
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.explain.tensorrt_log import TENSORRT_LOG
from nanoserve.units import GIB, MIB

BOOT = """\
[TensorRT-LLM] TensorRT-LLM version: 0.17.0
[TensorRT-LLM][INFO] Loaded engine size: 15317 MiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1192.35 MiB for execution context memory.
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 31.84 GiB, \
available: 17.83 GiB
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 8219
[TensorRT-LLM][INFO] Number of blocks in KV cache secondary pool: 0, onboard blocks to primary
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008).
[02/14/2025-09:38:53] [TRT-LLM] [I] max_seq_len=131072, max_num_requests=2048, max_num_tokens=8192
[02/14/2025-09:38:53] [TRT-LLM] [I] Engine loaded and ready to serve...
"""


def read(text: str) -> LoggedBoot:
    return read_log(TENSORRT_LOG, plain_log(text).text)


def test_a_healthy_boot() -> None:
    """The primary pool counts; the context's memory is no pool."""
    boot = read(BOOT)

    assert boot.version == "0.17.0"
    assert (boot.total_bytes, boot.free_bytes) == (round(31.84 * GIB), round(17.83 * GIB))
    assert boot.weight_bytes == 15317 * MIB
    assert boot.pool_bytes == round(16.05 * GIB)
    assert (boot.num_blocks, boot.block_size, boot.pool_tokens) == (8219, 32, 263_008)
    assert (boot.max_model_len, boot.max_num_seqs) == (131_072, 2048)
    assert boot.max_num_batched_tokens == 8192
    assert boot.is_ready
    assert boot.error is None


def test_a_length_taken_back() -> None:
    """A pool under one request shortens what is served."""
    boot = read(f"{BOOT}[12/20/2025-04:21:10] [TRT-LLM] [W] Adjusted max_seq_len to 8224\n")

    assert boot.max_model_len == 8224


@pytest.mark.parametrize(
    ("text", "kind", "stage"),
    [
        (
            "[TRT-LLM] [I] Loading weights\nRuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
            "out of memory",
            "weights",
        ),
        ("ValueError: Unknown architecture for AutoModelForCausalLM: X", "unsupported", "start"),
        (
            "[TRT-LLM] [I] Loading weights\n[TRT-LLM] [RANK 0] [I] Estimated max tokens in KV "
            "cache : 80360\nCUDA runtime error in ::cudaMallocAsync(ptr, n): out of memory",
            "out of memory",
            "pool",
        ),
    ],
)
def test_what_stops_a_boot(text: str, kind: str, stage: str) -> None:
    """Each way to fail has its kind and stage."""
    error = read(text).error

    assert error is not None
    assert (error.kind, error.stage) == (kind, stage)


def test_the_name_without_a_hyphen() -> None:
    """Since 1.0 the product is spelled in three words."""
    assert read("[TensorRT-LLM] TensorRT LLM version: 1.1.0\n").version == "1.1.0"


def test_weights_from_what_was_free_around_the_model() -> None:
    """The runtime lists what it made, with what was free before and after."""
    boot = read(
        "Previously created components and free GPU memory before/after creation (GiB):\n"
        "Model: 94.30 / 47.83\nSampler: 47.83 / 47.80\n"
    )

    assert boot.weight_bytes == round(94.30 * GIB) - round(47.83 * GIB)
