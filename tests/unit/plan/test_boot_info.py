"""What a boot says of itself, as JSON values and as a table."""

import json
from dataclasses import replace
from typing import Any

import pytest

from nanoserve.errors import BootUnsound
from nanoserve.plan.boot_checks import check_boot_info
from nanoserve.plan.boot_info import CaptureOutcome, boot_info, boot_lines
from nanoserve.plan.boot_plan import BootPlan
from nanoserve.plan.boot_report import BootReport, BudgetLine, StageReport
from nanoserve.plan.capture_plan import CaptureRequest, plan_capture
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.kv_plan import KVPoolPlan
from nanoserve.plan.load_peak import LoadPlan
from nanoserve.plan.memory_budget import MemoryBudget, MemoryReading
from nanoserve.plan.weight_plan import WeightPlan
from nanoserve.units import GIB, MIB

POOL = KVPoolPlan(
    num_blocks=2047,
    block_bytes=MIB // 2,
    block_size=16,
    concurrency_at_max_len=15,
    bound_by="slots",
    sized_by="fill",
    num_sink_blocks=1,
    reading=MemoryReading(8 * GIB, 4 * GIB, own_bytes=2 * GIB, context_bytes=GIB),
    reserve_bytes=GIB,
    activation_bytes=64 * MIB,
    capture_bytes=32 * MIB,
)
PLAN = BootPlan(
    device=DeviceFacts("cuda", "a card", MemoryReading(8 * GIB, 7 * GIB), 4, True),
    dtype="bfloat16",
    kv_cache_dtype="int8",
    threads=4,
    max_num_seqs=8,
    max_model_len=2048,
    max_num_batched_tokens=2048,
    weights=WeightPlan("int4", None, (("int4 in groups of 32", GIB), ("bfloat16", GIB))),
    weight_bytes=2 * GIB,
    activation_bytes=64 * MIB,
    load=LoadPlan(2 * GIB, MIB, 0),
    kv_pool=POOL,
    decode_mode="captured",
    capture=plan_capture(
        8,
        2048,
        request=CaptureRequest(),
        arena_bytes=lambda rows, width: rows * width,
        depends_on_width=False,
    ),
    budget=MemoryBudget.divide(8 * GIB, {"weights": 2 * GIB, "kv pool": GIB}),
    notes=("a choice",),
)
REPORT = BootReport(
    (StageReport("read", 0.5, "a file"), StageReport("pool", 0.25, "", GIB, GIB + MIB)),
    (
        BudgetLine("weights", 2 * GIB, 2 * GIB),
        BudgetLine("kv pool", GIB, GIB + MIB),
        BudgetLine("unassigned", 5 * GIB),
    ),
)
SHAPES = ((8, 2048), (4, 2048), (2, 2048), (1, 2048))


def info(plan: BootPlan = PLAN, capture: CaptureOutcome | None = None) -> dict[str, Any]:
    return json.loads(json.dumps(boot_info(plan, REPORT, capture)))  # type: ignore[no-any-return]


def test_the_pool_is_flat_with_all_its_figures() -> None:
    """Every number that sized the pool stands beside it, each scope a name of its own."""
    assert info()["kv_pool"] == {
        "num_blocks": 2047,
        "num_sink_blocks": 1,
        "block_bytes": MIB // 2,
        "block_size": 16,
        "pool_bytes": GIB,
        "num_tokens": 2047 * 16,
        "total_bytes": 8 * GIB,
        "free_after_load": 4 * GIB,
        "own_bytes": 2 * GIB,
        "context_bytes": GIB,
        "other_processes_bytes": GIB,
        "reserve_bytes": GIB,
        "activation_bytes": 64 * MIB,
        "capture_bytes": 32 * MIB,
        "concurrency_at_max_len": 15,
        "bound_by": "slots",
        "sized_by": "fill",
    }


def test_weights_are_told_by_format() -> None:
    """What was asked for, and the bytes of each format, whatever the head has."""
    assert info()["weights"] == {
        "quantization": "int4",
        "formats": [
            {"name": "int4 in groups of 32", "num_bytes": GIB},
            {"name": "bfloat16", "num_bytes": GIB},
        ],
    }


def test_a_device_that_was_not_asked_has_no_figures() -> None:
    """A pool sized without a reading says null, not zero."""
    pool = info(replace(PLAN, kv_pool=replace(POOL, reading=None)))["kv_pool"]

    assert pool["total_bytes"] is None
    assert pool["free_after_load"] is None
    assert pool["other_processes_bytes"] is None


def test_capture_is_nested_and_cold_until_something_was_recorded() -> None:
    """A plan without an outcome is cold; with one, its shapes are those recorded."""
    warm = CaptureOutcome(SHAPES[1:], SHAPES[:1], is_warm=True, measured_bytes=7)

    assert info()["cuda_graphs"]["is_warm"] is False
    assert info()["cuda_graphs"]["recorded"] == []
    graphs = info(capture=warm)["cuda_graphs"]
    assert graphs["recorded"] == [[4, 2048], [2, 2048], [1, 2048]]
    assert (graphs["dropped"], graphs["measured_bytes"]) == ([[8, 2048]], 7)
    assert graphs["shapes"] == [list(shape) for shape in SHAPES]
    assert "shapes" not in info()


def test_how_k_and_v_are_stored_is_told_beside_the_compute_dtype() -> None:
    """The two are options of their own."""
    info = boot_info(PLAN, REPORT, None)

    assert (info["model_dtype"], info["kv_cache_dtype"]) == ("bfloat16", "int8")


def test_eager_has_no_graphs() -> None:
    """Where steps run as they come, capture is null."""
    eager = replace(PLAN, decode_mode="eager", capture=None)

    assert info(eager)["cuda_graphs"] is None
    check_boot_info(info(eager))


def test_stages_and_budget_carry_their_residual() -> None:
    """Planned, measured and their difference stand in one line, null where unknown."""
    values = info()

    assert [line["residual_bytes"] for line in values["budget"]] == [0, MIB, None]
    assert [stage["residual_bytes"] for stage in values["stages"]] == [None, MIB]
    assert values["seconds"] == pytest.approx(0.75)


def test_the_payload_of_a_sound_boot_is_sound() -> None:
    """What is made here passes the check, and fails it once a shape is claimed."""
    check_boot_info(info(capture=CaptureOutcome(SHAPES, (), is_warm=True)))

    with pytest.raises(BootUnsound, match="planned and not recorded"):
        check_boot_info(info(capture=CaptureOutcome(SHAPES[1:], (), is_warm=True)))


def test_the_table_is_aligned() -> None:
    """Planned, measured and residual in columns; what nobody measured is a dash."""
    assert boot_lines(info()) == (
        "memory       planned  measured  residual",
        "weights     2.00 GiB  2.00 GiB   0.0 MiB",
        "kv pool     1.00 GiB  1.00 GiB  +1.0 MiB",
        "unassigned  5.00 GiB         -         -",
        "total       8.00 GiB",
    )


def test_what_packing_took_stands_below_the_total() -> None:
    """It is no part of the device: the pool is allocated after it was given back."""
    report = replace(REPORT, load=BudgetLine("load", 2 * GIB + MIB, 2 * GIB + 3 * MIB))
    payload = boot_info(PLAN, report, None)

    assert boot_lines(payload)[-2:] == (
        "total                 8.00 GiB",
        "packing, at its peak  2.00 GiB  2.00 GiB  +2.0 MiB",
    )
    assert payload["load"] == {
        "name": "load",
        "planned_bytes": 2 * GIB + MIB,
        "measured_bytes": 2 * GIB + 3 * MIB,
        "residual_bytes": 2 * MIB,
    }
    assert info()["load"] is None


def test_the_table_leaves_out_what_is_empty() -> None:
    """A part without a byte, planned or measured, has no line."""
    payload = info()
    empty = {"planned_bytes": 0, "measured_bytes": None, "residual_bytes": None}
    payload["budget"] = [*payload["budget"], {"name": "capture", **empty}]

    assert boot_lines(payload) == boot_lines(info())
