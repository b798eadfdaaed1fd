"""The plan once the device was asked again: after the weights, and after the pool."""

import pytest

from nanoserve.errors import CaptureTooSmall, DoesNotFitError
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_plan import plan_boot
from nanoserve.plan.boot_replan import settle_capture, settle_pool
from nanoserve.plan.boot_sizing import torch_backend_facts
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.units import GIB, KIB, MIB, round_up
from tests.plan_cases import GPU, SMOLLM2

OPTIONS = EngineOptions()
PLAN = plan_boot(SMOLLM2, OPTIONS, GPU)
BACKEND = torch_backend_facts(SMOLLM2, block_size=16)


def loaded(free_bytes: int) -> MemoryReading:
    """Return the device with the weights on it."""
    own_bytes = PLAN.weight_bytes
    return MemoryReading(GPU.total_bytes, free_bytes, own_bytes, GPU.reading.context_bytes)


def test_measured_peak_replaces_the_estimate() -> None:
    """A step that takes less leaves more blocks, and the budget says both."""
    reading = loaded(GPU.free_bytes - PLAN.weight_bytes)

    settled = settle_pool(PLAN, reading, OPTIONS, PLAN.activation_bytes // 2)

    assert settled.kv_pool.num_blocks > PLAN.kv_pool.num_blocks
    assert settled.activation_bytes == PLAN.activation_bytes // 2
    assert settled.budget.part_bytes("activations") == PLAN.activation_bytes // 2
    assert settled.budget.part_bytes("kv pool") == settled.kv_pool.pool_bytes
    assert settled.budget.total_bytes == GPU.total_bytes
    (note,) = settled.notes[len(PLAN.notes) :]
    assert f"{settled.kv_pool.num_blocks:,} blocks, planned {PLAN.kv_pool.num_blocks:,}" in note


def test_device_as_planned_changes_nothing_and_needs_no_note() -> None:
    """Nobody came, nobody left, and the estimate stands."""
    settled = settle_pool(PLAN, loaded(GPU.free_bytes - PLAN.weight_bytes), OPTIONS, None)

    assert settled.kv_pool.num_blocks == PLAN.kv_pool.num_blocks
    assert settled.notes == PLAN.notes


def test_neighbour_that_left_makes_room() -> None:
    """More is free than before the boot: the pool grows."""
    reading = loaded(GPU.free_bytes - PLAN.weight_bytes + GIB // 2)

    assert settle_pool(PLAN, reading, OPTIONS, None).kv_pool.num_blocks > PLAN.kv_pool.num_blocks


def test_neighbour_that_took_everything_is_named() -> None:
    """The refusal says how much other processes hold."""
    with pytest.raises(DoesNotFitError, match="held by other processes"):
        settle_pool(PLAN, loaded(100 * MIB), OPTIONS, None)


def test_capture_gets_what_is_free_beside_the_pool() -> None:
    """The reserve, but for what the pool was rounded up by, and the activations stay."""
    set_aside = PLAN.kv_pool.reserve_bytes + PLAN.activation_bytes
    rounding_bytes = round_up(PLAN.kv_pool.pool_bytes, 2 * MIB) - PLAN.kv_pool.pool_bytes

    settled = settle_capture(PLAN, loaded(set_aside + GIB), OPTIONS, BACKEND)

    assert PLAN.capture is not None
    assert settled.capture is not None
    assert settled.capture.budget_bytes == GIB + rounding_bytes
    assert settled.capture.shapes == PLAN.capture.shapes
    assert settled.notes == PLAN.notes


@pytest.mark.parametrize("neighbour_kib", range(0, 2048, 128))
def test_a_filling_pool_costs_capture_no_shape(neighbour_kib: int) -> None:
    """The device hands out whole 2 MiB, which is more than a pool leaves unassigned."""
    free_bytes = GPU.free_bytes - PLAN.weight_bytes - neighbour_kib * KIB
    settled = settle_pool(PLAN, loaded(free_bytes), OPTIONS, None)
    beside_pool = loaded(free_bytes - round_up(settled.kv_pool.pool_bytes, 2 * MIB))

    captured = settle_capture(settled, beside_pool, OPTIONS, BACKEND)

    assert PLAN.capture is not None
    assert captured.capture is not None
    assert captured.capture.shapes == PLAN.capture.shapes


def test_crowded_device_trims_the_widths_and_says_so() -> None:
    """Bytes for the narrowest bucket alone leave its shapes."""
    set_aside = PLAN.kv_pool.reserve_bytes + PLAN.activation_bytes
    narrowest_bytes = BACKEND.arena_bytes(PLAN.max_num_seqs, 128)

    settled = settle_capture(PLAN, loaded(set_aside + narrowest_bytes), OPTIONS, BACKEND)

    assert settled.capture is not None
    assert (settled.capture.max_width, settled.capture.width_bound_by) == (128, "bytes")
    assert "capture: 4 shapes, planned 64" in settled.notes[-1]


def test_full_device_captures_nothing() -> None:
    """A ceiling under one bucket is a refusal."""
    with pytest.raises(CaptureTooSmall):
        settle_capture(PLAN, loaded(0), OPTIONS, BACKEND)


def test_bytes_given_by_hand_stay() -> None:
    """What the operator gave is not second-guessed; nor is a plan without captured steps."""
    by_hand = EngineOptions(capture_bytes=8 * MIB)
    eager = EngineOptions(decode_mode="eager")

    for options in (by_hand, eager):
        plan = plan_boot(SMOLLM2, options, GPU)
        assert settle_capture(plan, loaded(0), options, BACKEND) is plan
