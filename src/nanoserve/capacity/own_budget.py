"""Our own server's division of a GPU or of this machine, as its boot would plan it.

Nothing is imitated: the boot's planner is asked, and its budget read. Owns only the facts that
a boot would ask of the device.
"""

from typing import Literal

from nanoserve.capacity.interval import Interval
from nanoserve.capacity.plan_choices import PlanChoices
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.errors import DoesNotFitError, OptionError
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_plan import plan_boot
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.memory_budget import REMAINDER, MemoryBudget, MemoryReading
from nanoserve.spec.served_spec import served_spec
from nanoserve.units import GIB

# What the estimate of the largest step may be off by. Source: tests/reference holds estimates
# against measured steps of a CPU; a GPU's boot measures and replaces it.
_ACTIVATIONS = (0.75, 1.0, 1.1)
_BF16_SINCE = 8.0  # compute capability


def own_parts(query: PlanQuery, choices: PlanChoices) -> tuple[tuple[str, Interval], ...]:
    """Return the parts of a device in the order subtracted, the pool last.

    Raises:
        UnsupportedModelError: Our decoder does not serve the model.
        OptionError: More than one GPU is to share it, or it is to be quantised.
        CaptureTooSmall: Not one decode step can be recorded.
    """
    _check_served(query)
    context = Interval.scaled(query.profile.lone_gib, 0 if query.gpu.is_host else GIB)
    budget = _budget(query, choices, context.mid)
    left = budget.part_bytes("kv pool") + budget.part_bytes(REMAINDER)
    activation = Interval.scaled(_ACTIVATIONS, budget.part_bytes("activations"))
    parts = {
        "kept back": Interval.exactly(budget.part_bytes("reserve")),
        "weights": Interval.exactly(budget.part_bytes("weights")),
        "activations": activation,
        "outside the allocator": context,
        "CUDA graphs": Interval.exactly(budget.part_bytes("capture")),
    }
    spread = activation + context
    pool = Interval(left - (spread.high - spread.mid), left, left + (spread.mid - spread.low))
    return (*parts.items(), ("KV pool", pool))


def _check_served(query: PlanQuery) -> None:
    if query.ranks * query.pp > 1:
        message = "nanoserve serves on one GPU: plan it with --num-gpus 1, or --tp 1 for copies."
        raise OptionError(message)
    if query.weight_format is not None or query.kv_cache_dtype not in ("auto", "bf16", "bfloat16"):
        message = (
            "nanoserve is planned with weights and KV in the dtype it computes in: leave out "
            "--quantization and --kv-cache-dtype here, or plan another --engine. What its own "
            "formats leave, `nanoserve serve` with these flags says as it starts."
        )
        raise OptionError(message)


def _budget(query: PlanQuery, choices: PlanChoices, context_bytes: int) -> MemoryBudget:
    """Return the budget of the boot, of a refused one as well."""
    options = EngineOptions(
        model=query.model.name,
        max_num_seqs=choices.max_num_seqs,
        max_model_len=choices.longest,
        max_num_batched_tokens=choices.max_num_batched_tokens,
        gpu_memory_utilization=query.utilization or query.profile.utilization or 1.0,
        decode_mode="eager" if query.is_eager else "auto",
    )
    total = query.gpu.memory_bytes
    reading = MemoryReading(total, total - context_bytes, context_bytes=context_bytes)
    kind: Literal["cpu", "cuda"] = "cpu" if query.gpu.is_host else "cuda"
    device = DeviceFacts(kind, query.gpu.name, reading, 8, _has_bf16(query))
    try:
        return plan_boot(served_spec(query.model), options, device).budget
    except DoesNotFitError as error:
        if not isinstance(error.budget, MemoryBudget):
            raise
        return error.budget


def _has_bf16(query: PlanQuery) -> bool:
    """Whether the device multiplies bfloat16; a card nobody listed is taken for a recent one."""
    capability = query.gpu.compute_capability
    try:
        return float(capability) >= _BF16_SINCE
    except ValueError:
        return capability != "host"
