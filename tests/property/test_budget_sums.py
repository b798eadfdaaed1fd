"""Budgets sum to their device, and pools keep to their share of it."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.errors import CaptureTooSmall, DoesNotFitError, PlanError
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_plan import plan_boot, replan_kv_pool
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.kv_plan import PoolDemand, kv_budget_bytes, plan_kv_pool
from nanoserve.plan.memory_budget import REMAINDER, MemoryBudget
from nanoserve.spec.model_spec import ModelSpec
from tests.strategies import boot_options, devices, model_specs


@settings(max_examples=150, deadline=None)
@given(spec=model_specs(), options=boot_options(), device=devices())
def test_parts_sum_to_the_device(
    spec: ModelSpec, options: EngineOptions, device: DeviceFacts
) -> None:
    """Made or refused, a plan divides the whole device, and a plan that is made fits."""
    refused: Any = None
    try:
        plan = plan_boot(spec, options, device)
    except DoesNotFitError as error:
        refused = error.budget
    except CaptureTooSmall:
        return
    budget: MemoryBudget = refused or plan.budget

    assert sum(part.num_bytes for part in budget.parts) == budget.total_bytes == device.total_bytes
    if refused:
        return
    assert budget.part_bytes(REMAINDER) >= 0
    assert budget.part_bytes("other processes") == device.reading.other_processes_bytes
    if plan.kv_pool.sized_by == "fill":
        assert budget.part_bytes(REMAINDER) < plan.kv_pool.block_bytes


@settings(max_examples=100, deadline=None)
@given(
    spec=model_specs(),
    device=devices(),
    gained_bytes=st.integers(0, 2**32),
    policy=st.sampled_from(["device", "process"]),
)
def test_pool_grows_with_what_is_free(
    spec: ModelSpec, device: DeviceFacts, gained_bytes: int, policy: str
) -> None:
    """When others leave, a filling pool is no smaller than before, and the same plan still holds."""
    options = EngineOptions(kv_pool="fill", memory_policy=policy, max_model_len=64)  # type: ignore[arg-type]
    device = replace(device, kind="cuda")
    try:
        plan = plan_boot(spec, options, device)
    except PlanError:
        return
    assert plan.kv_pool.reading is not None
    free_bytes = plan.kv_pool.reading.free_bytes + gained_bytes
    pool = replan_kv_pool(plan, replace(plan.kv_pool.reading, free_bytes=free_bytes), options)

    assert pool.num_blocks >= plan.kv_pool.num_blocks
    assert replan_kv_pool(plan, plan.kv_pool.reading, options) == plan.kv_pool


@given(
    device=devices(),
    utilization=st.floats(0.01, 1.0),
    activation_bytes=st.integers(0, 2**20),
    block_bytes=st.integers(1, 2**24),
    num_sink_blocks=st.integers(0, 1),
)
def test_pool_stays_within_its_budget(
    device: DeviceFacts,
    utilization: float,
    activation_bytes: int,
    block_bytes: int,
    num_sink_blocks: int,
) -> None:
    """A pool of whole blocks takes at most the budget, and misses less than one block of it."""
    budget_bytes = kv_budget_bytes(device.reading, utilization, activation_bytes)
    demand = PoolDemand(1, 1, 1, block_bytes, num_sink_blocks)
    num_blocks = demand.blocks_in(budget_bytes)
    if num_blocks == 0:
        assert budget_bytes < demand.bytes_of(1)
        return
    pool = plan_kv_pool(demand, num_blocks, "fill")

    assert 0 <= budget_bytes - pool.pool_bytes < block_bytes
