"""What to change where a boot is refused: flags, each planned again before it is given."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nanoserve.errors import Budget, CaptureTooSmall, DoesNotFitError, OptionError, PlanError
from nanoserve.options import MIN_MODEL_LEN, EngineOptions, flag_name
from nanoserve.plan.boot_choices import BootChoices
from nanoserve.plan.kv_plan import PoolDemand
from nanoserve.plan.memory_budget import REMAINDER
from nanoserve.plan.pool_room import PROCESS_POLICY_FREE_SHARE
from nanoserve.units import MIB

MAX_ADVICE = 4  # flags offered; more would hide the best

Attempt = Callable[[EngineOptions], PlanError | OptionError | None]  # None: it can be planned
Changes = dict[str, Any]  # fields of `EngineOptions`

_RAISED_FIELDS = {"flag": "warm_width", "bytes": "capture_bytes", "limit": "capture_limit"}


def memory_advice(
    error: DoesNotFitError,
    options: EngineOptions,
    choices: BootChoices,
    demand: PoolDemand,
    attempt: Attempt,
) -> tuple[str, ...]:
    """Return flags with any one of which the refused plan fits, the gentlest first.

    Args:
        error: The refusal, with the budget it broke.
        options: What was asked for.
        choices: What that came to.
        demand: What the pool was to hold.
        attempt: Plans again.
    """
    assert error.budget is not None, "a refused boot carries its budget"  # noqa: S101
    of_process: Changes = {"memory_policy": "process"}
    others_matter = options.memory_policy == "device" and error.budget.part_bytes("other processes")
    sizes = (
        ("max_model_len", MIN_MODEL_LEN, choices.max_model_len),
        ("max_num_seqs", 1, options.max_num_seqs),
        ("max_num_batched_tokens", options.max_num_seqs, choices.token_budget),
    )
    smaller = [_largest(options, {}, size, attempt) for size in sizes]
    candidates = [
        of_process if others_matter else None,
        {"kv_cache_dtype": "int8"} if options.kv_cache_dtype == "auto" else None,
        *smaller[:2],
        _fewer_bits(options, attempt),
        _pool_size(error.budget, options, demand),
        smaller[2],
        {"dtype": "bfloat16"} if choices.dtype == "float32" else None,
        _eager(options),
    ]
    advice = _that_work(candidates, options, attempt)
    if advice or not others_matter:
        return advice
    both = [_largest(options, of_process, size, attempt) for size in sizes]
    return _that_work(both, options, attempt)


def capture_advice(
    error: CaptureTooSmall, options: EngineOptions, attempt: Attempt
) -> tuple[str, ...]:
    """Return flags with any one of which steps can be captured, then how to do without.

    Args:
        error: The refusal, with what set the ceiling and the least that would do.
        options: What was asked for.
        attempt: Plans again.
    """
    max_rows = options.warm_rows or options.max_num_seqs
    candidates = [
        _raised(error, options, attempt),
        _largest(options, {}, ("warm_rows", 1, max_rows), attempt),
        _eager(options),
    ]
    return _that_work(candidates, options, attempt)


def as_flags(changes: Changes) -> str:
    """Write changes as they are typed on a command line."""
    return " ".join(_as_flag(name, value) for name, value in changes.items())


def _as_flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag_name(name if value else f"no_{name}")
    if name.endswith("_bytes") and value % MIB == 0:
        return f"{flag_name(name)} {value // MIB}MiB"
    return f"{flag_name(name)} {value}"


def _that_work(
    candidates: list[Changes | None], options: EngineOptions, attempt: Attempt
) -> tuple[str, ...]:
    working = [
        as_flags(changes)
        for changes in candidates
        if changes is not None and _works(options, changes, attempt)
    ]
    return tuple(working[:MAX_ADVICE])


def _works(options: EngineOptions, changes: Changes, attempt: Attempt) -> bool:
    try:
        changed = replace(options, **changes)
    except OptionError:
        return False
    return attempt(changed) is None


def _largest(
    options: EngineOptions, base: Changes, size: tuple[str, int, int], attempt: Attempt
) -> Changes | None:
    """Return `base` with the largest value of one option that fits, under the present one.

    Args:
        options: What was asked for.
        base: What is changed beside it.
        size: The option, the least it may be, and what it is now.
        attempt: Plans again.
    """
    name, least, present = size
    low, high = least - 1, present - 1  # `low` fits or is none, above `high` nothing does
    while low < high:
        middle = (low + high + 1) // 2
        if _works(options, {**base, name: middle}, attempt):
            low = middle
        else:
            high = middle - 1
    return {**base, name: low} if low >= least else None


def _fewer_bits(options: EngineOptions, attempt: Attempt) -> Changes | None:
    """Return the most bits a weight may have, under the present ones."""
    fewer: tuple[Changes, ...] = ({"quantization": "int8"}, {"quantization": "int4"})
    tried = {"none": fewer, "int8": fewer[1:], "int4": ()}[options.quantization]
    return next((changes for changes in tried if _works(options, changes, attempt)), None)


def _pool_size(budget: Budget, options: EngineOptions, demand: PoolDemand) -> Changes:
    """Return a pool of all that is wanted, or of nearly all there is room for."""
    parts = ("kv pool", "reserve", REMAINDER)
    room_bytes = sum(budget.part_bytes(name) for name in parts)
    wanted_bytes = demand.bytes_of(demand.num_blocks)
    num_bytes = min(wanted_bytes, int(PROCESS_POLICY_FREE_SHARE * room_bytes))
    if options.num_blocks is not None:
        return {"num_blocks": demand.blocks_in(num_bytes)}
    return {"kv_cache_bytes": num_bytes // MIB * MIB or num_bytes}


def _raised(error: CaptureTooSmall, options: EngineOptions, attempt: Attempt) -> Changes:
    """Return every limit that is under one bucket, raised to one: so none binds twice."""
    changes: Changes = {}
    refusal: Exception | None = error
    while isinstance(refusal, CaptureTooSmall):
        changes[_RAISED_FIELDS[refusal.bound_by]] = refusal.need
        refusal = attempt(replace(options, **changes))
    return changes


def _eager(options: EngineOptions) -> Changes:
    """Return how to ask for steps that are not recorded, whichever flag asked for them."""
    changes: Changes = {"cuda_graphs": False} if options.cuda_graphs else {}
    if options.decode_mode != "auto" or not changes:
        changes["decode_mode"] = "eager"
    return changes
