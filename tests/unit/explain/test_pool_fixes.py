"""Changes that make a pool hold a request."""

from dataclasses import replace

import pytest

from nanoserve.capacity.engine_profile import find_profile
from nanoserve.explain.logged_boot import LoggedBoot, LoggedError
from nanoserve.explain.pool_fixes import (
    more_of_the_device,
    no_estimate,
    profile_of_boot,
    smaller_step,
    twice_the_gpus,
)
from nanoserve.units import GIB

NO_ROOM = LoggedBoot(
    engine="vllm",
    version="0.21.0",
    total_bytes=80 * GIB,
    utilization=0.92,
    weight_bytes=66 * GIB,
    activation_bytes=8 * GIB,
    graph_estimate_bytes=2 * GIB,
    is_graph_estimate_in_budget=True,
    pool_bytes=-2 * GIB,
    error=LoggedError("no room for pool", "", "pool"),
)


def test_profiles_follow_the_logged_version() -> None:
    """A version that cannot be read is taken for the newest."""
    assert profile_of_boot(NO_ROOM) == find_profile("vllm@0.21.0")
    assert profile_of_boot(replace(NO_ROOM, version="0.6.4.post1")) == find_profile("vllm@0.6.4")
    assert profile_of_boot(replace(NO_ROOM, version="dev")) == find_profile("vllm")


def test_a_smaller_step_frees_its_part() -> None:
    """Half of 8 GiB, less what no setting changes: a pool of under 2 GiB is left."""
    fix = smaller_step(replace(NO_ROOM, max_num_seqs=256, max_num_batched_tokens=8192))

    assert fix is not None
    assert fix.change == "--max-num-batched-tokens 4096 --max-num-seqs 128"
    fixed_gib = profile_of_boot(NO_ROOM).fixed_gib[2]
    assert fix.freed_bytes == pytest.approx((8 - fixed_gib) * GIB / 2, abs=1)
    assert "pool 1.8" in fix.effect or "pool 1.9" in fix.effect


def test_a_step_is_shrunk_as_far_as_needed() -> None:
    """A pool that lacks more takes a quarter; one that lacks too much none."""
    more = replace(NO_ROOM, pool_bytes=-4 * GIB)

    fix = smaller_step(more)

    assert fix is not None
    assert fix.change == "--max-num-batched-tokens 2048 --max-num-seqs 256"
    assert smaller_step(replace(NO_ROOM, pool_bytes=-8 * GIB)) is None


@pytest.mark.parametrize(
    "change",
    [{"engine": "sglang"}, {"version": "0.6.0"}, {"activation_bytes": None}, {"total_bytes": None}],
)
def test_a_step_of_unknown_size_is_left_alone(change: dict[str, str | None]) -> None:
    """Other engines, whole prompts and missing figures."""
    assert smaller_step(replace(NO_ROOM, **change)) is None  # type: ignore[arg-type]


def test_an_estimate_that_is_not_taken_off_is_enough() -> None:
    """Without recording the estimate comes back, if that will do."""
    large = replace(NO_ROOM, graph_estimate_bytes=4 * GIB)

    assert no_estimate(NO_ROOM) is None
    fix = no_estimate(large)
    assert fix is not None
    assert fix.change == "--enforce-eager"
    assert "pool 2.00 GiB" in fix.effect


def test_twice_the_gpus_halve_the_weights() -> None:
    """33 GiB come free on each card, about 2 go to what the cards hold for each other."""
    fix = twice_the_gpus(NO_ROOM)

    assert fix is not None
    assert fix.change == "--tensor-parallel-size 2"
    profile = profile_of_boot(NO_ROOM)
    joined_bytes = round((profile.peer_gib[1] - profile.lone_gib[1]) * GIB)
    assert fix.freed_bytes == 33 * GIB - joined_bytes
    joined = twice_the_gpus(replace(NO_ROOM, tensor_parallel=2))
    assert joined is not None
    assert joined.freed_bytes == 33 * GIB
    assert twice_the_gpus(replace(NO_ROOM, weight_bytes=GIB)) is None


def test_no_more_is_asked_for_than_the_margin_leaves() -> None:
    """3 GiB of 80 are four hundredths; above 0.97 nothing is offered."""
    fix = more_of_the_device(NO_ROOM)

    assert fix is not None
    assert fix.change == "--gpu-memory-utilization 0.96"
    assert more_of_the_device(replace(NO_ROOM, pool_bytes=-4 * GIB)) is None
