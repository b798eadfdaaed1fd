"""What a boot's plan becomes once the device was asked again: the pool, then the capture list.

Pure, as all plans are: the readings are handed in.
"""

from dataclasses import replace

from nanoserve.options import EngineOptions
from nanoserve.plan.backend_facts import BackendFacts
from nanoserve.plan.boot_choices import DTYPE_BYTES
from nanoserve.plan.boot_plan import BootPlan, replan_kv_pool
from nanoserve.plan.capture_plan import CaptureRequest, plan_capture
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.plan.pool_room import PoolRoom
from nanoserve.units import MIB, format_bytes, round_up

# Of a CUDA device, whole multiples are handed out. Source: torch 2.13,
# c10/cuda/CUDACachingAllocator, kRoundLarge.
_ALLOCATION_BYTES = 2 * MIB


def settle_pool(
    plan: BootPlan,
    reading: MemoryReading,
    options: EngineOptions,
    activation_bytes: int | None,
) -> BootPlan:
    """Return the plan with the pool and the budget that the resident weights leave.

    Args:
        plan: The boot as planned.
        reading: The device with the weights on it.
        options: What the plan was made of.
        activation_bytes: What the profile run measured; None keeps the estimate.

    Raises:
        DoesNotFitError: The pool does not fit any more.
    """
    pool = replan_kv_pool(plan, reading, options, activation_bytes)
    room = PoolRoom(
        reading,
        plan.weight_bytes,
        pool.reserve_bytes,
        pool.activation_bytes,
        pool.capture_bytes,
    )
    notes = plan.notes
    if pool.num_blocks != plan.kv_pool.num_blocks:
        notes += (
            f"kv pool: {pool.num_blocks:,} blocks, planned {plan.kv_pool.num_blocks:,}: "
            f"{format_bytes(reading.free_bytes)} is free beside the weights, and the largest "
            f"step takes {format_bytes(pool.activation_bytes)}",
        )
    return replace(
        plan,
        kv_pool=pool,
        activation_bytes=pool.activation_bytes,
        budget=room.divide(pool.pool_bytes),
        notes=notes,
    )


def settle_capture(
    plan: BootPlan, reading: MemoryReading, options: EngineOptions, backend: BackendFacts
) -> BootPlan:
    """Return the plan with the shapes that what is free beside the pool holds.

    Bytes that the operator gave are theirs to give: then the list stays. So it does where
    there is none. What a GPU rounds the pool up by comes out of the reserve: a filling pool
    leaves less than a block unassigned, and capture would lose its widest shapes to it.

    Args:
        plan: The boot, its pool settled.
        reading: The device with weights and pool on it.
        options: What the plan was made of.
        backend: What the attention backend says of its recorded steps.

    Raises:
        CaptureTooSmall: Not one shape fits beside the pool.
    """
    if plan.capture is None or options.capture_bytes is not None:
        return plan
    reserve_bytes = max(0, plan.kv_pool.reserve_bytes - _rounding_bytes(plan))
    set_aside = reserve_bytes + plan.kv_pool.activation_bytes
    budget_bytes = max(0, reading.free_bytes - set_aside)
    request = CaptureRequest(
        options.warm_rows, options.warm_width, budget_bytes, options.capture_limit
    )
    capture = plan_capture(
        plan.max_num_seqs,
        plan.max_model_len,
        request=request,
        arena_bytes=backend.arena_bytes_of(DTYPE_BYTES[plan.dtype], plan.max_num_batched_tokens),
        depends_on_width=backend.depends_on_width,
        has_close_rows=backend.is_native and plan.decode_mode == "captured",
    )
    notes = plan.notes
    if capture.shapes != plan.capture.shapes:
        notes += (
            f"capture: {capture.count:,} shapes, planned {plan.capture.count:,}: "
            f"{format_bytes(budget_bytes)} is free for them beside the pool",
        )
    return replace(plan, capture=capture, notes=notes)


def _rounding_bytes(plan: BootPlan) -> int:
    if plan.device.kind != "cuda":
        return 0
    pool_bytes = plan.kv_pool.pool_bytes
    return round_up(pool_bytes, _ALLOCATION_BYTES) - pool_bytes
