"""`plan_boot`: options and facts in, every number the launcher needs out.

Counts weights, activations, captured steps and the KV pool, divides the device among them,
and refuses what does not fit, with flags that were planned again before they are given.
The launcher builds from a `BootPlan` and computes no bytes of its own.
Read next: `boot_choices` (what is left to decide), `kv_plan` (the pool), `boot_advice`.
"""

from dataclasses import dataclass, replace

from nanoserve.errors import CaptureTooSmall, DoesNotFitError, OptionError, PlanError
from nanoserve.options import EngineOptions
from nanoserve.plan.activation_plan import (
    DRAWN_LOGIT_BYTES,
    estimate_activation_bytes,
    largest_step,
)
from nanoserve.plan.boot_advice import capture_advice, memory_advice
from nanoserve.plan.boot_choices import BootChoices, ResolvedDecodeMode, choose
from nanoserve.plan.capture_plan import BackendFacts, CapturePlan, CaptureRequest, plan_capture
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.kv_plan import (
    KVPoolPlan,
    PoolDemand,
    kv_budget_bytes,
    kv_bytes_per_block,
    plan_kv_pool,
)
from nanoserve.plan.memory_budget import REMAINDER, MemoryBudget, MemoryReading
from nanoserve.plan.pool_room import PoolRoom, reserve_bytes
from nanoserve.plan.weight_plan import plan_weight_bytes
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import format_bytes, round_up


@dataclass(frozen=True, slots=True)
class BootPlan:
    """Everything decided before a byte is loaded.

    Attributes:
        device: The facts the plan was made for.
        dtype: Compute dtype, resolved.
        threads: CPU threads of the forward pass.
        max_num_seqs: Requests that run at once.
        max_model_len: Longest request in tokens.
        max_num_batched_tokens: Token budget of one step.
        weight_bytes: Bytes of the placed weights.
        activation_bytes: What the largest step wants for a moment: its largest phase,
            estimated.
        kv_pool: The KV pool.
        decode_mode: How decode steps run, resolved.
        capture: The shapes decode steps are padded to; None where they run as they come.
        budget: The whole device, part by part.
        notes: Each automatic choice or clamp, as a sentence with its reason.
    """

    device: DeviceFacts
    dtype: str
    threads: int
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    weight_bytes: int
    activation_bytes: int
    kv_pool: KVPoolPlan
    decode_mode: ResolvedDecodeMode
    capture: CapturePlan | None
    budget: MemoryBudget
    notes: tuple[str, ...]

    @property
    def planned_bytes(self) -> int:
        """Weights, pool, activations and captured steps together."""
        own_bytes = self.weight_bytes + self.kv_pool.pool_bytes
        return own_bytes + self.activation_bytes + self.kv_pool.capture_bytes


def plan_boot(
    spec: ModelSpec,
    options: EngineOptions,
    device: DeviceFacts,
    backend: BackendFacts | None = None,
) -> BootPlan:
    """Decide every number of a boot.

    Args:
        spec: Shape of the model.
        options: What the operator asked for.
        device: What there is.
        backend: What the attention backend says of its recorded steps; None for plain
            torch, which holds a float32 score for each head, row and token of width.

    Raises:
        OptionError: The options contradict each other, the model or the device.
        DoesNotFitError: The plan needs more than there is; its advice was planned again.
        CaptureTooSmall: Not one decode step can be recorded; its advice was planned again.
    """
    facts = backend or torch_backend_facts(spec)

    def attempt(changed: EngineOptions) -> PlanError | OptionError | None:
        try:
            _plan(spec, changed, device, facts)
        except (PlanError, OptionError) as error:
            return error
        return None

    try:
        return _plan(spec, options, device, facts)
    except DoesNotFitError as error:
        demand = _pool_demand(spec, options, choose(spec, options, device))
        advice = memory_advice(error, options, demand, attempt)
        raise DoesNotFitError(
            error.what, error.need_bytes, error.have_bytes, advice, error.budget
        ) from None
    except CaptureTooSmall as error:
        advice = capture_advice(error, options, attempt)
        raise CaptureTooSmall(error.bound_by, error.have, error.need, advice) from None


def replan_kv_pool(
    plan: BootPlan,
    reading: MemoryReading,
    options: EngineOptions,
    activation_bytes: int | None = None,
) -> KVPoolPlan:
    """Plan the pool again from what the device really says once the weights are resident.

    A filling pool takes what is left now. A pool whose size was asked for, or that follows
    demand, keeps its blocks.

    Args:
        plan: The boot as planned.
        reading: The device now.
        options: What the plan was made of.
        activation_bytes: What a profile run measured; None keeps the estimate.

    Raises:
        DoesNotFitError: Not even one request of the longest length fits any more, or less
            is free than the pool asked for.
    """
    pool = plan.kv_pool
    if activation_bytes is None:
        activation_bytes = plan.activation_bytes
    is_filling = pool.sized_by == "fill"
    kept_back = _reserve_bytes(reading, options) if is_filling else 0
    room = PoolRoom(reading, plan.weight_bytes, kept_back, activation_bytes, pool.capture_bytes)
    demand = PoolDemand(
        plan.max_num_seqs,
        plan.max_model_len,
        pool.block_size,
        pool.block_bytes,
        pool.num_sink_blocks,
    )
    if not is_filling and pool.pool_bytes > reading.free_bytes:
        what = (
            f"The KV pool of {pool.num_blocks:,} blocks that was planned does not fit on "
            f"{plan.device.name} beside the weights any more."
        )
        budget = room.divide(pool.pool_bytes)
        raise DoesNotFitError(what, pool.pool_bytes, reading.free_bytes, budget=budget)
    num_blocks = demand.blocks_in(room.budget_bytes) if is_filling else pool.num_blocks
    return plan_kv_pool(demand, num_blocks, pool.sized_by, room)


def torch_backend_facts(spec: ModelSpec) -> BackendFacts:
    """Return what plain torch attention says of its recorded steps."""

    def arena_bytes(rows: int, width: int) -> int:
        return rows * spec.num_heads * width * 4

    return BackendFacts(depends_on_width=True, arena_bytes=arena_bytes)


def _plan(
    spec: ModelSpec, options: EngineOptions, device: DeviceFacts, backend: BackendFacts
) -> BootPlan:
    choices = choose(spec, options, device)
    demand = _pool_demand(spec, options, choices)
    capture = _plan_capture(options, choices, backend)
    room = _plan_room(spec, options, device, choices, capture)
    _check_weights(room, device)
    num_blocks = _num_blocks(options, device, choices, demand, room)
    pool = plan_kv_pool(demand, num_blocks, choices.sized_by, room)
    budget = room.divide(pool.pool_bytes)
    _check_fits(pool, budget, device)
    return BootPlan(
        device=device,
        dtype=choices.dtype,
        threads=options.threads or device.num_cores,
        max_num_seqs=options.max_num_seqs,
        max_model_len=choices.max_model_len,
        max_num_batched_tokens=choices.token_budget,
        weight_bytes=room.weight_bytes,
        activation_bytes=room.activation_bytes,
        kv_pool=pool,
        decode_mode=choices.decode_mode,
        capture=capture,
        budget=budget,
        notes=choices.notes,
    )


def _pool_demand(spec: ModelSpec, options: EngineOptions, choices: BootChoices) -> PoolDemand:
    return PoolDemand(
        options.max_num_seqs,
        choices.max_model_len,
        options.block_size,
        kv_bytes_per_block(spec, options.block_size, choices.itemsize),
        num_sink_blocks=0 if choices.decode_mode == "eager" else 1,
    )


def _plan_capture(
    options: EngineOptions, choices: BootChoices, backend: BackendFacts
) -> CapturePlan | None:
    if choices.decode_mode == "eager":
        return None
    request = CaptureRequest(
        options.warm_rows, options.warm_width, options.capture_bytes, options.capture_limit
    )
    return plan_capture(
        options.max_num_seqs,
        choices.max_model_len,
        request=request,
        arena_bytes=backend.arena_bytes,
        depends_on_width=backend.depends_on_width,
    )


def _plan_room(
    spec: ModelSpec,
    options: EngineOptions,
    device: DeviceFacts,
    choices: BootChoices,
    capture: CapturePlan | None,
) -> PoolRoom:
    """Return the device as it will be with the weights on it, and what is set aside."""
    weight_bytes = plan_weight_bytes(spec, choices.itemsize)
    reading = replace(
        device.reading,
        free_bytes=device.free_bytes - weight_bytes,
        own_bytes=device.reading.own_bytes + weight_bytes,
    )
    step = largest_step(
        options.max_num_seqs,
        round_up(choices.max_model_len, options.block_size),
        choices.token_budget,
        choices.itemsize,
        is_fused=device.kind == "cpu",
    )
    activations = estimate_activation_bytes(spec, step, choices.itemsize, DRAWN_LOGIT_BYTES)
    capture_bytes = 0
    if capture is not None:
        capture_bytes = (
            capture.arena_bytes if options.capture_bytes is None else options.capture_bytes
        )
    kept_back = _reserve_bytes(reading, options) if choices.sized_by == "fill" else 0
    return PoolRoom(reading, weight_bytes, kept_back, activations.peak_bytes, capture_bytes)


def _num_blocks(
    options: EngineOptions,
    device: DeviceFacts,
    choices: BootChoices,
    demand: PoolDemand,
    room: PoolRoom,
) -> int:
    if options.num_blocks is not None:
        return options.num_blocks
    if options.kv_cache_bytes is not None:
        return demand.blocks_in(options.kv_cache_bytes)
    if choices.sized_by == "demand":
        return demand.num_blocks
    budget_bytes = kv_budget_bytes(
        room.reading if device.kind == "cuda" else None,
        options.gpu_memory_utilization,
        room.activation_bytes,
        room.capture_bytes,
        options.memory_policy,
    )
    return demand.blocks_in(budget_bytes)


def _reserve_bytes(reading: MemoryReading, options: EngineOptions) -> int:
    return reserve_bytes(reading, options.gpu_memory_utilization, options.memory_policy)


def _check_weights(room: PoolRoom, device: DeviceFacts) -> None:
    """Refuse weights that do not even load, before the pool is blamed for it."""
    if room.weight_bytes <= device.free_bytes:
        return
    what = f"The weights do not fit on {device.name}.{_others(device)}"
    raise DoesNotFitError(what, room.weight_bytes, device.free_bytes, budget=room.divide(0))


def _check_fits(pool: KVPoolPlan, budget: MemoryBudget, device: DeviceFacts) -> None:
    missing_bytes = -budget.part_bytes(REMAINDER)
    if missing_bytes <= 0:
        return
    weight_bytes = budget.part_bytes("weights")
    capture = f", captured steps ({format_bytes(pool.capture_bytes)})" if pool.capture_bytes else ""
    what = (
        f"Weights ({format_bytes(weight_bytes)}), a KV pool of {pool.num_blocks:,} blocks "
        f"({format_bytes(pool.pool_bytes)}){capture} and activations "
        f"({format_bytes(pool.activation_bytes)}) do not fit together on {device.name}."
        f"{_others(device)}"
    )
    need_bytes = device.free_bytes + missing_bytes
    raise DoesNotFitError(what, need_bytes, device.free_bytes, budget=budget)


def _others(device: DeviceFacts) -> str:
    num_bytes = device.reading.other_processes_bytes
    return f" {format_bytes(num_bytes)} is held by other processes." if num_bytes else ""
