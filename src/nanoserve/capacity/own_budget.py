"""Our own server's division of a GPU or of a machine, as its boot would plan it.

Nothing is imitated: the boot's own functions are asked, and their figures read. Owns only the
facts that a boot would ask of the device.
"""

from dataclasses import dataclass, replace

from nanoserve.capacity.block_cost import BlockCost
from nanoserve.capacity.budget_line import (
    KEPT_BACK,
    LEFT_OVER,
    POOL,
    BudgetLine,
    StageBudget,
    pool_formula,
)
from nanoserve.capacity.interval import Interval
from nanoserve.capacity.own_formats import (
    has_native_ops,
    own_dtype,
    own_kv_cache_dtype,
    own_quantization,
)
from nanoserve.capacity.plan_choices import PlanChoices
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.capacity.rank_weights import RankWeights, bytes_formula
from nanoserve.errors import DoesNotFitError, OptionError
from nanoserve.options import EngineOptions
from nanoserve.plan.backend_facts import BackendFacts
from nanoserve.plan.boot_choices import BootChoices, choose
from nanoserve.plan.boot_plan import plan_once
from nanoserve.plan.boot_sizing import pool_demand, torch_backend_facts, weights_for
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.formula import Formula, Number, compute
from nanoserve.plan.kv_plan import PoolDemand
from nanoserve.plan.load_peak import LoadPlan, plan_load
from nanoserve.plan.memory_budget import REMAINDER, MemoryBudget, MemoryReading
from nanoserve.plan.native_facts import native_backend_facts, native_shape_problem
from nanoserve.plan.weight_plan import WeightPlan
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.served_spec import served_spec
from nanoserve.units import GIB

# What the estimate of the largest step may be off by. Source: tests/reference holds estimates
# against measured steps of a CPU; a GPU's boot measures and replaces it.
_ACTIVATIONS = (0.75, 1.0, 1.1)
# What the process holds before it loads anything: Python, torch and the HTTP front. Measured:
# 0.19 GiB with torch 2.10 for the CPU; builds for CUDA map more.
_PROCESS_GIB = (0.15, 0.19, 0.35)
_NUM_CORES = 8  # sets threads, and no byte
_NOTHING = Interval.exactly(0)


@dataclass(frozen=True, slots=True)
class _AskedBoot:
    """What the boot's functions are asked with."""

    spec: ModelSpec
    options: EngineOptions
    device: DeviceFacts
    facts: BackendFacts
    resolved: BootChoices


@dataclass(frozen=True, slots=True)
class OwnBoot:
    """A boot that was planned.

    Attributes:
        weights: How the weights are kept.
        demand: What the pool is for.
        budget: The device, part by part; of a refused boot as well.
        is_filling: Whether the pool takes what is left, rather than what slots may need.
        refusal: What the boot says where it refuses to start; empty where it starts.
        load: What loading takes for a moment.
        is_loadable: Whether there is that much.
    """

    weights: WeightPlan
    demand: PoolDemand
    budget: MemoryBudget
    is_filling: bool
    refusal: str
    load: LoadPlan
    is_loadable: bool

    @property
    def weights_formula(self) -> Formula:
        """How the part `weights` comes about: bytes by format, and the rotary table."""
        symbols: dict[str, Number] = {
            _symbol(name): num_bytes for name, num_bytes in self.weights.parts
        }
        symbols["rotary_table"] = self.budget.part_bytes("weights") - self.weights.num_bytes
        return compute("weights", " + ".join(symbols), "bytes", symbols)


def own_weights(query: PlanQuery, choices: PlanChoices, counted: RankWeights) -> RankWeights:
    """Return the weights as our server keeps them: packed, padded, a tied head as a head.

    Args:
        query: What is asked.
        choices: What it was resolved to.
        counted: The parameters of the model by group.

    Raises:
        UnsupportedModelError: Our decoder does not serve the model.
        OptionError: The server refuses an option, or a layer cannot be cut into groups.
    """
    boot = _asked_boot(query, choices)
    params = dict(counted.params)
    if boot.spec.tie_word_embeddings:
        params["head"] = params.pop("embedding")
    plan = weights_for(boot.spec, boot.options, boot.device, boot.resolved)
    symbols = {_symbol(name): num_bytes for name, num_bytes in plan.parts}
    by_bits = int(bytes_formula(params, choices.weight_format).value)
    return replace(
        counted,
        params=params,
        weight_bytes=Interval.exactly(plan.num_bytes),
        formula=compute("weights", " + ".join(symbols), "bytes", symbols),
        stored_share=plan.num_bytes / by_bits,
    )


def own_stage(query: PlanQuery, choices: PlanChoices, weights: RankWeights) -> StageBudget:
    """Return the device in the order its boot subtracts, the pool last.

    Raises:
        UnsupportedModelError: Our decoder does not serve the model.
        OptionError: More than one GPU is to share it, or the server refuses an option.
        CaptureTooSmall: Not one decode step can be recorded.
    """
    boot = own_boot(query, choices)
    lines, pool = _lines(query, boot)
    formula = pool_formula(query.gpu.memory_bytes, lines)
    demand = boot.demand
    return StageBudget(
        weights=weights,
        shape=query.model.shape,
        total_bytes=query.gpu.memory_bytes,
        lines=(*lines, BudgetLine(POOL, pool, formula)),
        pool=pool,
        cost=BlockCost(demand.block_bytes, demand.block_size, demand.num_sink_blocks),
        is_reserved=not boot.is_filling,
        refusal=boot.refusal,
        is_loadable=boot.is_loadable,
        load_peak=boot.load.peak_formula,
    )


def own_boot(query: PlanQuery, choices: PlanChoices) -> OwnBoot:
    """Plan the boot, of a refused one as well.

    Raises:
        UnsupportedModelError: Our decoder does not serve the model.
        OptionError: More than one GPU is to share it, or the server refuses an option.
        CaptureTooSmall: Not one decode step can be recorded.
    """
    boot = _asked_boot(query, choices)
    refusal = ""
    try:
        budget = plan_once(boot.spec, boot.options, boot.device, boot.facts).budget
    except DoesNotFitError as error:
        if not isinstance(error.budget, MemoryBudget):
            raise
        budget, refusal = error.budget, str(error)
    weights = weights_for(boot.spec, boot.options, boot.device, boot.resolved)
    load = plan_load(boot.spec, weights, budget.part_bytes("weights"))
    return OwnBoot(
        weights,
        pool_demand(boot.spec, boot.options, boot.resolved),
        budget,
        boot.resolved.sized_by == "fill",
        refusal,
        load,
        load.fits(boot.device.free_bytes),
    )


def _lines(query: PlanQuery, boot: OwnBoot) -> tuple[list[BudgetLine], Interval]:
    """Return the parts before the pool, and the pool: the boot's, or what is left for it."""
    budget = boot.budget
    held = _outside(query)
    activation = Interval.scaled(_ACTIVATIONS, budget.part_bytes("activations"))
    left, pool = budget.part_bytes(REMAINDER), budget.part_bytes("kv pool")
    pool += min(0, left)
    unused = max(0, left)
    spread = activation + held
    low, high = spread.high - spread.mid, spread.mid - spread.low
    kept_back = budget.part_bytes("reserve")
    if boot.is_filling:
        size, over = Interval(pool - low, pool, pool + high), _NOTHING
        kept_back += unused  # less than a block
    else:
        size, over = Interval.exactly(pool), Interval(max(0, unused - low), unused, unused + high)
    weights = Interval.exactly(budget.part_bytes("weights"))
    steps = Interval.exactly(budget.part_bytes("capture"))
    is_host = query.gpu.is_host
    lines = [
        BudgetLine(KEPT_BACK, Interval.exactly(kept_back)),
        BudgetLine("weights", weights, boot.weights_formula),
        BudgetLine("activations", activation),
        BudgetLine("this process at start" if is_host else "outside the allocator", held),
        BudgetLine("recorded steps" if is_host else "CUDA graphs", steps),
        BudgetLine(LEFT_OVER, over if unused else _NOTHING),
    ]
    return [line for line in lines if line.size != _NOTHING], size


def _outside(query: PlanQuery) -> Interval:
    """Return what is held before anything is loaded: a driver's context, or the process."""
    return Interval.scaled(_PROCESS_GIB if query.gpu.is_host else query.profile.lone_gib, GIB)


def _asked_boot(query: PlanQuery, choices: PlanChoices) -> _AskedBoot:
    _check_served(query)
    spec = served_spec(query.model)
    options = _options(query, choices)
    is_native = _is_native(query, spec, options)
    facts = torch_backend_facts(spec, options.block_size)
    if is_native:
        facts = native_backend_facts(
            spec,
            options.block_size,
            options.quantization,
            records_steps="amx" not in query.gpu.host_has,
        )
    device = _device(query, is_native)
    return _AskedBoot(spec, options, device, facts, choose(spec, options, device, facts.is_native))


def _check_served(query: PlanQuery) -> None:
    if query.ranks * query.num_stages > 1:
        message = "nanoserve serves on one GPU: plan it with --num-gpus 1, or --tp 1 for copies."
        raise OptionError(message)
    if query.gpu.is_host and query.utilization is not None:
        message = (
            "--gpu-memory-utilization divides a GPU, and a machine's memory is held by demand: "
            "leave it out, or plan less memory with --gpu-mem."
        )
        raise OptionError(message)


def _is_native(query: PlanQuery, spec: ModelSpec, options: EngineOptions) -> bool:
    """Whether native operators serve the model, which only some formats need."""
    if not has_native_ops(query.gpu):
        return False
    problem = native_shape_problem(spec)
    if problem is not None and (options.quantization, options.kv_cache_dtype) != ("none", "auto"):
        message = f"{problem} Leave --quantization and --kv-cache-dtype out: torch serves it."
        raise OptionError(message)
    return problem is None


def _options(query: PlanQuery, choices: PlanChoices) -> EngineOptions:
    return EngineOptions(
        model=query.model.name,
        quantization=own_quantization(query.weight_format, query.gpu),
        kv_cache_dtype=own_kv_cache_dtype(query.kv_cache_dtype, query.gpu),
        max_num_seqs=choices.max_num_seqs,
        max_model_len=choices.longest,
        max_num_batched_tokens=choices.max_num_batched_tokens,
        gpu_memory_utilization=query.utilization or query.profile.utilization or 1.0,
        decode_mode="eager" if query.is_eager else "auto",
    )


def _device(query: PlanQuery, is_native: bool) -> DeviceFacts:
    total, held = query.gpu.memory_bytes, _outside(query).mid
    is_host = query.gpu.is_host
    reading = MemoryReading(
        total,
        total - held,
        own_bytes=held if is_host else 0,
        context_bytes=0 if is_host else held,
    )
    return DeviceFacts(
        "cpu" if is_host else "cuda",
        query.gpu.name,
        reading,
        _NUM_CORES,
        own_dtype(query.gpu) == "bfloat16",
        is_native,
    )


def _symbol(name: str) -> str:
    return name.replace(" ", "_")
