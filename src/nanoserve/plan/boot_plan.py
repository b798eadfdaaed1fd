"""`plan_boot`: options and facts in, every number the launcher needs out.

Counts weights, activations, captured steps and the KV pool, divides the device among them,
and refuses what does not fit, with flags that were planned again before they are given.
The launcher builds from a `BootPlan` and computes no bytes of its own.
Read next: `boot_choices` (what is left open), `boot_sizing` (bytes), `boot_advice` (refusals).
"""

from dataclasses import dataclass

from nanoserve.errors import CaptureTooSmall, DoesNotFitError, OptionError, PlanError
from nanoserve.options import EngineOptions
from nanoserve.plan.backend_facts import BackendFacts
from nanoserve.plan.boot_advice import capture_advice, memory_advice
from nanoserve.plan.boot_choices import ResolvedDecodeMode, choose
from nanoserve.plan.boot_sizing import (
    activation_bytes_for,
    capture_bytes_for,
    capture_for,
    kept_back_bytes,
    num_blocks_for,
    plan_room,
    pool_demand,
    torch_backend_facts,
    weights_for,
)
from nanoserve.plan.capture_plan import CapturePlan
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.kv_plan import KVPoolPlan, PoolDemand, plan_kv_pool
from nanoserve.plan.load_peak import LoadPlan, plan_load
from nanoserve.plan.memory_budget import REMAINDER, MemoryBudget, MemoryReading
from nanoserve.plan.pool_room import PoolRoom
from nanoserve.plan.weight_plan import WeightPlan
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import format_bytes


@dataclass(frozen=True, slots=True)
class BootPlan:
    """Everything decided before a byte is loaded.

    Attributes:
        device: The facts the plan was made for.
        dtype: Compute dtype, resolved.
        kv_cache_dtype: How the pool stores K and V: the compute dtype, `int8` or `fp8`.
        threads: CPU threads of the forward pass.
        max_num_seqs: Requests that run at once.
        max_model_len: Longest request in tokens.
        max_num_batched_tokens: Token budget of one step.
        weights: How the weights are kept.
        weight_bytes: Bytes of the placed weights and the rotary table.
        activation_bytes: What the largest step wants for a moment: its largest phase,
            estimated.
        load: What loading takes for a moment, where nothing is packed yet.
        kv_pool: The KV pool.
        decode_mode: How decode steps run, resolved.
        capture: The shapes decode steps are padded to; None where they run as they come.
        budget: The whole device, part by part.
        notes: Each automatic choice or clamp, as a sentence with its reason.
    """

    device: DeviceFacts
    dtype: str
    kv_cache_dtype: str
    threads: int
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    weights: WeightPlan
    weight_bytes: int
    activation_bytes: int
    load: LoadPlan
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
    facts = backend or torch_backend_facts(spec, options.block_size)

    def attempt(changed: EngineOptions) -> PlanError | OptionError | None:
        try:
            plan_once(spec, changed, device, facts)
        except (PlanError, OptionError) as error:
            return error
        return None

    try:
        return plan_once(spec, options, device, facts)
    except DoesNotFitError as error:
        choices = choose(spec, options, device, facts.is_native)
        demand = pool_demand(spec, options, choices)
        advice = memory_advice(error, options, choices, demand, attempt)
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
    kept_back = kept_back_bytes(reading, options) if is_filling else 0
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


def plan_once(
    spec: ModelSpec, options: EngineOptions, device: DeviceFacts, backend: BackendFacts
) -> BootPlan:
    """Decide as `plan_boot` does, without advice where it does not fit.

    Raises:
        OptionError: As `plan_boot`.
        DoesNotFitError: The plan needs more than there is.
        CaptureTooSmall: Not one decode step can be recorded.
    """
    _check_kv_cache_dtype(options, device, backend)
    choices = choose(spec, options, device, backend.is_native)
    demand = pool_demand(spec, options, choices)
    capture = capture_for(options, choices, backend)
    activation_bytes = activation_bytes_for(spec, options, device, choices, backend)
    capture_bytes = capture_bytes_for(options, capture)
    room = plan_room(spec, options, device, choices, activation_bytes, capture_bytes)
    _check_weights(room, device)
    weights = weights_for(spec, options, device, choices)
    load = plan_load(spec, weights, room.weight_bytes)
    _check_load(load, room, device)
    num_blocks = num_blocks_for(options, device, choices, demand, room)
    pool = plan_kv_pool(demand, num_blocks, choices.sized_by, room)
    budget = room.divide(pool.pool_bytes)
    _check_fits(pool, budget, device)
    return BootPlan(
        device=device,
        dtype=choices.dtype,
        kv_cache_dtype=choices.dtype
        if options.kv_cache_dtype == "auto"
        else options.kv_cache_dtype,
        threads=options.threads or device.num_cores,
        max_num_seqs=options.max_num_seqs,
        max_model_len=choices.max_model_len,
        max_num_batched_tokens=choices.token_budget,
        weights=weights,
        weight_bytes=room.weight_bytes,
        activation_bytes=room.activation_bytes,
        load=load,
        kv_pool=pool,
        decode_mode=choices.decode_mode,
        capture=capture,
        budget=budget,
        notes=choices.notes,
    )


def _check_kv_cache_dtype(
    options: EngineOptions, device: DeviceFacts, backend: BackendFacts
) -> None:
    name = options.kv_cache_dtype
    if name in backend.kv_cache_dtypes:
        return
    if device.kind != "cpu":
        remedy = "Add --device cpu --attention-backend native"
    elif options.attention_backend == "torch":
        remedy = "Leave out --attention-backend torch"
    else:
        remedy = "Install a C++ compiler (g++) if there is none"
    message = (
        f"--kv-cache-dtype {name} is read by native attention alone, which runs on the CPU, and "
        f"torch's would serve here: it reads {', '.join(backend.kv_cache_dtypes)}. {remedy}, or "
        "leave --kv-cache-dtype out."
    )
    raise OptionError(message)


def _check_weights(room: PoolRoom, device: DeviceFacts) -> None:
    """Refuse weights that do not even load, before the pool is blamed for it."""
    if room.weight_bytes <= device.free_bytes:
        return
    what = f"The weights do not fit on {device.name}.{_others(device)}"
    raise DoesNotFitError(what, room.weight_bytes, device.free_bytes, budget=room.divide(0))


def _check_load(load: LoadPlan, room: PoolRoom, device: DeviceFacts) -> None:
    """Refuse weights that fit once they are there, and not on their way.

    What a first start takes is asked for even where packed weights are on disk: that file may
    be deleted at any time, and a server must start then, too.
    """
    if load.fits(device.free_bytes):
        return
    if load.peak_bytes == load.measuring_bytes:
        how = "measuring the inputs of a fit to 4 bits has a layer in float32 beside its step"
    else:
        how = f"packing takes {format_bytes(load.packing_bytes)} beside them for a moment"
    what = f"The weights do not fit on {device.name} while they load: {how}.{_others(device)}"
    raise DoesNotFitError(what, load.peak_bytes, device.free_bytes, budget=room.divide(0))


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
