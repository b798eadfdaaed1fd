"""A boot's memory line by line."""

from dataclasses import replace

import pytest

from nanoserve.explain.boot_budget import budget_rows
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.units import GIB

VLLM = LoggedBoot(
    engine="vllm",
    total_bytes=24 * GIB,
    budget_bytes=21 * GIB,
    weight_bytes=8 * GIB,
    non_torch_bytes=GIB,
    activation_bytes=2 * GIB,
    pool_bytes=10 * GIB,
    graph_bytes=GIB,
    positions={"weight_bytes": 40},
)


def lefts(boot: LoggedBoot) -> dict[str, int | None]:
    return {row.name: row.left_bytes for row in budget_rows(boot)}


def test_parts_come_off_in_the_engines_order() -> None:
    """The reserve first, the pool last; recorded steps lie outside the sum."""
    rows = budget_rows(VLLM)

    assert [row.name for row in rows] == [
        "total", "reserve", "weights", "driver context", "activations", "kv pool", "capture",
    ]  # fmt: skip
    assert [row.left_bytes and row.left_bytes // GIB for row in rows] == [
        24, 21, 13, 12, 10, 0, None,
    ]  # fmt: skip
    assert rows[2].position == 40
    assert rows[-1].is_outside


def test_an_estimate_in_the_budget_is_a_part_of_it() -> None:
    """Since 0.21 it comes off before the pool."""
    boot = replace(VLLM, graph_estimate_bytes=GIB, is_graph_estimate_in_budget=True)

    assert lefts(boot)["capture"] == 9 * GIB


def test_consumed_memory_stands_for_weights_and_context() -> None:
    """Versions that print both as one have no line of the context."""
    boot = replace(VLLM, weight_bytes=None, consumed_bytes=9 * GIB)

    assert "driver context" not in lefts(boot)
    assert lefts(boot)["weights"] == 12 * GIB


def test_what_the_log_does_not_say_stays_open() -> None:
    """From the first unknown part on nobody knows what is left."""
    rows = budget_rows(replace(VLLM, budget_bytes=None))

    assert (rows[1].name, rows[1].num_bytes) == ("reserve", None)
    assert [row.left_bytes for row in rows[1:]] == [None] * 6


def test_a_log_without_figures_has_no_budget() -> None:
    """A table of nothing is no table."""
    assert budget_rows(LoggedBoot(engine="vllm", version="0.9.1")) == ()


@pytest.mark.parametrize(
    ("engine", "first"),
    [("sglang", "free at start"), ("tensorrt-llm", "total"), ("llama.cpp", "free at start")],
)
def test_each_engine_starts_from_its_own_figure(engine: str, first: str) -> None:
    """SGLang and llama.cpp divide what is free."""
    boot = LoggedBoot(engine=engine, total_bytes=24 * GIB, free_bytes=20 * GIB, weight_bytes=GIB)

    assert budget_rows(boot)[0].name == first


def test_sglangs_reserve_is_a_share_of_what_was_free() -> None:
    """20 GiB, 8 of weights, a tenth kept free: 10 are left."""
    boot = LoggedBoot(engine="sglang", free_bytes=20 * GIB, weight_bytes=8 * GIB, utilization=0.9)

    assert lefts(boot)["reserve"] == 10 * GIB


def test_what_others_took_before_is_shown() -> None:
    """Total less free at the start."""
    assert budget_rows(replace(VLLM, free_bytes=22 * GIB))[-1].num_bytes == 2 * GIB
