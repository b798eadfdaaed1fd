"""What could be changed on a healthy boot."""

from dataclasses import replace

from nanoserve.explain.boot_headroom import suggest_headroom
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.units import GIB

HEALTHY = LoggedBoot(
    engine="vllm",
    version="0.11.0",
    total_bytes=80 * GIB,
    free_bytes=79 * GIB,
    utilization=0.8,
    pool_bytes=32 * GIB,
    pool_tokens=262_144,
    max_model_len=131_072,
    max_num_seqs=256,
    graph_bytes=GIB,
    is_ready=True,
)


def effects(boot: LoggedBoot) -> dict[str, str]:
    return {fix.change: fix.effect for fix in suggest_headroom(boot)}


def test_more_of_the_device_leaves_graphs_and_others_room() -> None:
    """80 less 1 held, 1 of graphs and half a margin: 0.96 of the card."""
    found = effects(HEALTHY)["--gpu-memory-utilization 0.96"]

    assert found.startswith("pool 44.80 GiB holds 2.80 requests of 131,072 tokens")
    assert "3.20 GiB stay free" in found


def test_slots_beyond_the_pool_are_told_what_each_has() -> None:
    """256 slots share 262,144 tokens; at full length two fit."""
    found = effects(HEALTHY)

    assert "256 at once have 1,024 tokens each" in found["--max-num-seqs 1"]
    assert "--max-num-seqs 1" not in effects(replace(HEALTHY, max_num_seqs=2))


def test_eight_bits_double_the_tokens() -> None:
    """Unless the cache has eight already."""
    assert effects(HEALTHY)["--kv-cache-dtype fp8"].startswith("524,288 tokens instead of 262,144")
    assert "--kv-cache-dtype fp8" not in effects(replace(HEALTHY, kv_cache_dtype="fp8"))


def test_states_of_one_size_are_named() -> None:
    """Where bytes and tokens disagree, part of the pool is no keys and values."""
    hybrid = replace(HEALTHY, max_concurrency=5.23)

    assert effects(hybrid)["--kv-cache-dtype fp8"].startswith("up to 524,288 tokens")


def test_an_estimate_in_excess_is_given_back() -> None:
    """4 GiB taken off, 1 used: 3 of 80 are three hundredths."""
    boot = replace(
        HEALTHY,
        utilization=0.9,
        graph_estimate_bytes=4 * GIB,
        is_graph_estimate_in_budget=True,
    )

    assert "3.00 GiB less than was taken off" in effects(boot)["--gpu-memory-utilization 0.93"]


def test_few_long_requests_could_be_shorter() -> None:
    """Two fit; at half the length four."""
    assert effects(HEALTHY)["--max-model-len 65536"].endswith("4.00 requests of 65,536 tokens")


def test_layers_left_to_the_host_come_back_where_there_is_room() -> None:
    """10 of 20 layers take 10 GiB; of the 8 left, 7 more fit."""
    boot = LoggedBoot(
        engine="llama.cpp",
        free_bytes=20 * GIB,
        num_devices=1,
        weight_bytes=10 * GIB,
        pool_bytes=2 * GIB,
        num_layers=20,
        num_device_layers=10,
        is_ready=True,
    )

    assert "--n-gpu-layers 17" in effects(boot)


def test_without_a_pool_nothing_is_suggested() -> None:
    """A log of weights alone."""
    assert suggest_headroom(LoggedBoot(engine="vllm", weight_bytes=GIB, is_ready=True)) == ()
