"""SGLang's logs over its versions, lines as it prints them."""

import pytest

from nanoserve.explain.log_format import read_log
from nanoserve.explain.log_text import plain_log
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.explain.sglang_log import SGLANG_LOG
from nanoserve.units import GIB

BOOT = """\
[2025-01-14 09:20:01] server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B', tp_size=1, \
mem_fraction_static=0.88, kv_cache_dtype='auto')
[2025-01-14 09:20:03 TP0] Load weight begin. avail mem=78.81 GB
[2025-01-14 09:20:11 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, \
avail mem=63.72 GB, mem usage=15.06 GB.
[2025-01-14 09:20:12 TP0] KV Cache is allocated. #tokens: 444500, K size: 27.13 GB, V size: 27.13 GB
[2025-01-14 09:20:12 TP0] Memory pool end. avail mem=8.34 GB
[2025-01-14 09:20:13 TP0] Capture cuda graph begin. This can take up to several minutes.
[2025-01-14 09:20:20 TP0] Capture cuda graph end. Time elapsed: 7.1 s. mem usage=1.20 GB. avail mem=7.1 GB.
[2025-01-14 09:20:20 TP0] max_total_num_tokens=444500, chunked_prefill_size=8192, \
max_prefill_tokens=16384, max_running_requests=2049, context_len=131072, available_gpu_mem=7.10 GB
[2025-01-14 09:20:21] The server is fired up and ready to roll!
"""
EARLY = """\
[2024-12-13 01:44:50 TP0] Load weight begin. avail mem=23.30 GB
[2024-12-13 01:44:59 TP0] Load weight end. type=MistralForCausalLM, dtype=torch.bfloat16, avail mem=9.69 GB
[2024-12-13 01:45:02 TP0] max_total_num_tokens=56524, max_prefill_tokens=16384, context_len=32768
"""
DRAFTED = """\
KV Cache is allocated. #tokens: 171008, K 5.22 GB, V 5.22 GB
KV Cache is allocated. #tokens: 171008, K 0.33 GB, V 0.33 GB
"""


def read(text: str) -> LoggedBoot:
    return read_log(SGLANG_LOG, plain_log(text).text)


def gib(value: float) -> int:
    return round(value * GIB)


def test_a_healthy_boot() -> None:
    """Its GB are GiB; keys and values together are the pool."""
    boot = read(BOOT)

    assert boot.model == "meta-llama/Llama-3.1-8B"
    assert boot.free_bytes == gib(78.81)
    assert boot.utilization == 0.88
    assert boot.weight_bytes == gib(15.06)
    assert boot.pool_bytes == 2 * gib(27.13)
    assert boot.pool_tokens == 444_500
    assert boot.graph_bytes == gib(1.20)
    assert (boot.max_num_seqs, boot.max_model_len) == (2049, 131_072)
    assert boot.max_num_batched_tokens == 8192
    assert boot.is_ready
    assert boot.error is None


def test_weights_from_what_was_free_before_and_after() -> None:
    """Versions that print no usage leave it to a subtraction."""
    assert read(EARLY).weight_bytes == gib(23.30) - gib(9.69)


def test_a_latent_cache_is_one_figure() -> None:
    """Models with latent attention have no keys and values apart."""
    boot = read(
        "[2025-11-04 05:27:13 DP0 TP0 EP0] KV Cache is allocated. #tokens: 524288, KV size: 17.16 GB"
    )

    assert (boot.pool_bytes, boot.pool_tokens) == (gib(17.16), 524_288)


def test_the_draft_models_pool_is_the_smaller() -> None:
    """With a draft model two pools are printed; the model's own counts."""
    assert read(DRAFTED).pool_bytes == 2 * gib(5.22)


@pytest.mark.parametrize(
    ("text", "kind", "stage"),
    [
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "no room for pool",
            "pool",
        ),
        (
            "Capture cuda graph begin.\nException: Capture cuda graph failed: CUDA out of memory. Tried",
            "out of memory",
            "capture",
        ),
        (
            "Load weight begin. avail mem=23 GB\ntorch.OutOfMemoryError: CUDA out of memory. Tried",
            "out of memory",
            "weights",
        ),
        (
            "Load weight end. type=X\ntorch.OutOfMemoryError: CUDA out of memory. Tried",
            "out of memory",
            "pool",
        ),
        ("ValueError: Unsupported architectures: X", "unsupported", "start"),
        ("Exception: Capture cuda graph failed: Ninja build failed.", "other error", None),
    ],
)
def test_what_stops_a_boot(text: str, kind: str, stage: str) -> None:
    """Each way to fail has its kind and stage."""
    error = read(text).error

    assert error is not None
    assert (error.kind, error.stage) == (kind, stage)


SLIDING = """\
[2026-01-31 13:50:39 TP{rank}] Use sliding window memory pool. full_layer_tokens=375360, \
swa_layer_tokens=300288
[2026-01-31 13:50:39 TP{rank}] KV Cache is allocated. #tokens: 300288, K size: 8.38 GB, V size: 5.59 GB
[2026-01-31 13:50:39 TP{rank}] KV Cache is allocated. #tokens: 375360, K size: 1.21 GB, V size: 0.81 GB
"""


def test_pools_of_full_and_sliding_layers_are_summed() -> None:
    """Each rank prints two pools, of layers that see everything and of those that do not."""
    boot = read("".join(SLIDING.format(rank=rank) for rank in range(4)))

    assert boot.pool_bytes == sum(map(gib, (8.38, 5.59, 1.21, 0.81)))
    assert boot.pool_tokens == 375_360


def test_free_memory_from_what_is_left_and_what_was_taken() -> None:
    """A paste that starts with the weights in place still says what was free before them."""
    boot = read(
        "[2026-07-15 13:14:53] Load weight end. elapsed=19.09 s, type=Qwen3MoeForCausalLM, avail "
        "mem=230.20 GB, mem usage=56.98 GB.\n"
    )

    assert boot.free_bytes == gib(230.20) + gib(56.98)


def test_state_of_recurrent_layers_is_part_of_the_pool() -> None:
    """A hybrid sets it aside before keys and values; every rank prints both."""
    rank = (
        "[2026-02-27 17:10:28 TP{0}] Mamba Cache is allocated. max_mamba_cache_size: 82, conv_state "
        "size: 0.13GB, ssm_state size: 7.29GB \n"
        "[2026-02-27 17:10:28 TP{0}] KV Cache is allocated. #tokens: 580364, K size: 4.15 GB, V "
        "size: 4.15 GB\n"
    )

    assert read(rank.format(0) + rank.format(1)).pool_bytes == sum(
        map(gib, (0.13, 7.29, 4.15, 4.15))
    )
