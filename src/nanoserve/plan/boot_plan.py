"""`plan_boot`: options and facts in, every number the launcher needs out.

Resolves each "auto" with its reason, clamps the context to the model's, sizes the KV pool
and refuses what does not fit, with advice that was planned again before it is given.
The launcher builds from a `BootPlan` and computes no bytes of its own.
"""

from dataclasses import dataclass, replace
from typing import Literal

from nanoserve.errors import DoesNotFitError, OptionError, PlanError
from nanoserve.options import DEFAULT_TOKEN_BUDGET, EngineOptions
from nanoserve.plan.activation_plan import StepShape, plan_activations
from nanoserve.plan.capture_plan import CapturePlan
from nanoserve.plan.kv_plan import (
    KVPoolPlan,
    PoolDemand,
    kv_budget_bytes,
    kv_bytes_per_block,
    plan_kv_pool,
)
from nanoserve.plan.memory_budget import MemoryBudget
from nanoserve.plan.weight_plan import plan_weight_bytes
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import format_bytes

DEFAULT_MAX_MODEL_LEN = 2048  # tokens; a serving decision, not the model's limit
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LOGIT_BYTES = 4  # the head's output is always float32


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the launcher found about the device, asked once.

    Attributes:
        kind: `cpu` or `cuda`.
        name: For people, e.g. `NVIDIA H200`.
        total_bytes: All memory of the device; on a CPU, what this process may have in all.
        free_bytes: What this process may still take.
        num_cores: CPU cores this process may run on.
        has_native_bf16: Whether bfloat16 arithmetic has hardware.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    total_bytes: int
    free_bytes: int
    num_cores: int
    has_native_bf16: bool


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
        activation_bytes: What the largest step wants for a moment.
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
    decode_mode: Literal["eager", "bucketed", "captured"]
    capture: CapturePlan | None
    budget: MemoryBudget
    notes: tuple[str, ...]

    @property
    def planned_bytes(self) -> int:
        """Weights, pool and activations together."""
        return self.weight_bytes + self.kv_pool.pool_bytes + self.activation_bytes


def plan_boot(spec: ModelSpec, options: EngineOptions, device: DeviceFacts) -> BootPlan:
    """Decide every number of a boot.

    Args:
        spec: Shape of the model.
        options: What the operator asked for.
        device: What there is.

    Raises:
        OptionError: The options contradict each other or the model.
        DoesNotFitError: The plan needs more than there is; its advice was planned again.
    """
    try:
        return _plan(spec, options, device)
    except DoesNotFitError as error:
        advice = _verified_advice(spec, options, device)
        raise DoesNotFitError(error.what, error.need_bytes, error.have_bytes, advice) from None


def replan_kv_pool(plan: BootPlan, free_after_load: int, utilization: float) -> KVPoolPlan:
    """Size a pool that fills the device from what is really free once weights are resident.

    A pool whose size was asked for, or that follows demand, stays as planned.

    Raises:
        DoesNotFitError: Not even one request of the longest length fits any more.
    """
    pool = plan.kv_pool
    if pool.sized_by != "fill":
        return pool
    budget_bytes = kv_budget_bytes(
        free_after_load, plan.device.total_bytes, utilization, plan.activation_bytes
    )
    demand = PoolDemand(plan.max_num_seqs, plan.max_model_len, pool.block_size, pool.block_bytes)
    return plan_kv_pool(demand, budget_bytes // pool.block_bytes, "fill")


def _plan(spec: ModelSpec, options: EngineOptions, device: DeviceFacts) -> BootPlan:
    dtype, dtype_note = _resolve_dtype(options, device)
    max_model_len, length_note = _resolve_max_model_len(spec, options)
    token_budget = _resolve_token_budget(options, device)
    itemsize = DTYPE_BYTES[dtype]
    demand = PoolDemand(
        options.max_num_seqs,
        max_model_len,
        options.block_size,
        kv_bytes_per_block(spec, options.block_size, itemsize),
    )
    shape = StepShape(
        num_tokens=token_budget,
        num_logit_rows=options.max_num_seqs,
        num_scores=token_budget * max_model_len,
    )
    weight_bytes = plan_weight_bytes(spec, itemsize)
    activation_bytes = plan_activations(spec, shape, itemsize, LOGIT_BYTES).peak_bytes
    plan = BootPlan(
        device=device,
        dtype=dtype,
        threads=options.threads or device.num_cores,
        max_num_seqs=options.max_num_seqs,
        max_model_len=max_model_len,
        max_num_batched_tokens=token_budget,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        kv_pool=_plan_pool(options, device, demand, weight_bytes, activation_bytes),
        decode_mode="eager",
        capture=None,
        budget=MemoryBudget.divide(device.total_bytes, {}),
        notes=tuple(note for note in (dtype_note, length_note) if note),
    )
    _check_fits(plan)
    return plan


def _plan_pool(
    options: EngineOptions,
    device: DeviceFacts,
    demand: PoolDemand,
    weight_bytes: int,
    activation_bytes: int,
) -> KVPoolPlan:
    if options.num_blocks is not None:
        return plan_kv_pool(demand, options.num_blocks, "num_blocks")
    if options.kv_cache_bytes is not None:
        num_blocks = options.kv_cache_bytes // demand.block_bytes
        return plan_kv_pool(demand, num_blocks, "kv_cache_bytes")
    if device.kind == "cpu":
        return plan_kv_pool(demand, demand.num_blocks, "demand")
    budget_bytes = kv_budget_bytes(
        device.free_bytes - weight_bytes,
        device.total_bytes,
        options.gpu_memory_utilization,
        activation_bytes,
    )
    return plan_kv_pool(demand, budget_bytes // demand.block_bytes, "fill")


def _check_fits(plan: BootPlan) -> None:
    if plan.planned_bytes <= plan.device.free_bytes:
        return
    pool = plan.kv_pool
    what = (
        f"Weights ({format_bytes(plan.weight_bytes)}), a KV pool of {pool.num_blocks:,} blocks "
        f"({format_bytes(pool.pool_bytes)}) and activations "
        f"({format_bytes(plan.activation_bytes)}) "
        f"do not fit together on {plan.device.name}."
    )
    raise DoesNotFitError(what, plan.planned_bytes, plan.device.free_bytes)


def _resolve_dtype(options: EngineOptions, device: DeviceFacts) -> tuple[str, str]:
    if options.dtype != "auto":
        return options.dtype, ""
    if device.has_native_bf16:
        return "bfloat16", ""
    return "float32", f"dtype float32: {device.name} has no native bfloat16 arithmetic"


def _resolve_max_model_len(spec: ModelSpec, options: EngineOptions) -> tuple[int, str]:
    limit = spec.max_position_embeddings
    if options.max_model_len is None:
        return min(DEFAULT_MAX_MODEL_LEN, limit), ""
    if options.max_model_len <= limit:
        return options.max_model_len, ""
    note = (
        f"max_model_len {limit:,}: {options.max_model_len:,} was asked for, "
        f"and the model was made for {limit:,} positions"
    )
    return limit, note


def _resolve_token_budget(options: EngineOptions, device: DeviceFacts) -> int:
    if options.max_num_batched_tokens is not None:
        return options.max_num_batched_tokens
    return max(DEFAULT_TOKEN_BUDGET[device.kind], options.max_num_seqs)


def _verified_advice(
    spec: ModelSpec, options: EngineOptions, device: DeviceFacts
) -> tuple[str, ...]:
    """Return flags that were planned again and fit: at most three."""
    advice = []
    for name in ("max_model_len", "max_num_seqs"):
        value = _largest_that_fits(spec, options, device, name)
        if value is not None:
            advice.append(f"--{name.replace('_', '-')} {value}")
    explicit_size = options.num_blocks is not None or options.kv_cache_bytes is not None
    without_size = replace(options, num_blocks=None, kv_cache_bytes=None)
    if explicit_size and _fits(spec, without_size, device):
        advice.append(f"leave out --{'num-blocks' if options.num_blocks else 'kv-cache-bytes'}")
    return tuple(advice)


def _largest_that_fits(
    spec: ModelSpec, options: EngineOptions, device: DeviceFacts, name: str
) -> int | None:
    """Return the largest value of one option, under the present one, whose plan fits."""
    present = getattr(options, name) or DEFAULT_MAX_MODEL_LEN
    low, high = 0, present - 1  # `low` fits (0: nothing does), above `high` nothing does
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(spec, _with_option(options, name, middle), device):
            low = middle
        else:
            high = middle - 1
    return low or None


def _with_option(options: EngineOptions, name: str, value: int) -> EngineOptions:
    if name == "max_num_seqs":
        return replace(options, max_num_seqs=value)
    return replace(options, max_model_len=value)


def _fits(spec: ModelSpec, options: EngineOptions, device: DeviceFacts) -> bool:
    try:
        _plan(spec, options, device)
    except (PlanError, OptionError):
        return False
    return True
