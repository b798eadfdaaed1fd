"""The smallest changes with which a logged boot would have gone through, each checked.

Works on the log's own figures: a change is offered only where the arithmetic, done again
with the change, holds. The gentlest come first: those that cost nothing, then those that
shorten or halve, then those that slow down or take another card.
"""

import math
from collections.abc import Callable

from nanoserve.explain.boot_outcome import MANY_OTHERS, OutcomeKind, name_outcome
from nanoserve.explain.engine_flags import engine_flag
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.explain.offload_fixes import (
    fewer_layers,
    half_the_cache,
    shorter_context,
    smaller_pass,
)
from nanoserve.explain.pool_fixes import (
    device_bytes,
    eight_bit_cache,
    more_of_the_device,
    no_estimate,
    profile_of_boot,
    shorter_length,
    smaller_step,
    twice_the_gpus,
)
from nanoserve.explain.pool_sum import pool_sum
from nanoserve.explain.suggested_fix import STEP, Fix
from nanoserve.units import GIB, format_bytes


def suggest_fixes(boot: LoggedBoot) -> tuple[Fix, ...]:
    """Return changes any one of which would do, the gentlest first; none where none is known.

    Args:
        boot: A boot that failed.
    """
    if boot.error is not None and boot.error.advice:
        return tuple(Fix(flags, _PLANNED, 0) for flags in boot.error.advice)
    makers = _MAKERS.get(name_outcome(boot).kind, ())
    fixes = (make(boot) for make in makers)
    return tuple(fix for fix in fixes if fix is not None)


_FEW_SLOTS = 16  # a batch under which halving it frees nothing to speak of
_PLANNED = "the server planned again with it, and it fits"


def _less_of_the_device(boot: LoggedBoot) -> Fix | None:
    """Lower the utilization by what was missing outside the budget, if a request still fits."""
    device, missing = device_bytes(boot), _missing_outside(boot)
    if missing is None or boot.utilization is None or not device:
        return None
    steps = max(1, math.ceil(missing / device / STEP))
    utilization = round(boot.utilization - steps * STEP, 2)
    change = engine_flag(boot.engine, "utilization", utilization)
    freed = round((boot.utilization - utilization) * device)
    pool = pool_sum(boot)
    after = None if pool is None else pool.with_more(-freed)
    if change is None or utilization <= 0 or (after is not None and not after.holds_a_request):
        return None
    left = "" if after is None else f"; {after.describe()}"
    effect = f"{format_bytes(freed)} freed, {format_bytes(missing)} were missing{left}"
    return Fix(change, effect, freed)


def _missing_outside(boot: LoggedBoot) -> int | None:
    """Return what a failed allocation lacked; of one without figures, what graphs may take."""
    error = boot.error
    if error is not None and error.need_bytes is not None and error.have_bytes is not None:
        return max(0, error.need_bytes - error.have_bytes)
    if error is None or error.stage != "capture":
        return None
    high = round(profile_of_boot(boot).graph_gib[2] * GIB)
    device = device_bytes(boot)
    outside = 0 if device is None else round((1 - (boot.utilization or 1)) * device)
    return max(0, high - outside)


def _no_recording(boot: LoggedBoot) -> Fix | None:
    change = engine_flag(boot.engine, "eager")
    return None if change is None else Fix(change, "no step is recorded; decoding is slower", 0)


def _half_the_rows(boot: LoggedBoot) -> Fix | None:
    """Record and sample half as many rows, where the log says how many there were."""
    slots = boot.max_num_seqs
    change = engine_flag(boot.engine, "slots", (slots or 0) // 2)
    if not slots or slots < _FEW_SLOTS or change is None:
        return None
    effect = f"at most {slots // 2:,} rows of a decode step instead of {slots:,}, sampler included"
    return Fix(change, effect, 0)


def _what_is_free(boot: LoggedBoot) -> Fix | None:
    """Ask for no more than was free at the start."""
    device, error = boot.total_bytes, boot.error
    free = boot.free_bytes or (error.have_bytes if error else None)
    if free is None or not device:
        return None
    utilization = math.floor(free / device / STEP) * STEP
    change = engine_flag(boot.engine, "utilization", utilization)
    if change is None or utilization <= 0:
        return None
    budget = round(utilization * device)
    effect = f"{format_bytes(budget)} are asked for of {format_bytes(free)} free"
    return Fix(change, effect, budget)


def _make_others_leave(boot: LoggedBoot) -> Fix | None:
    error = boot.error
    if error is None or error.need_bytes is None or error.have_bytes is None:
        return None
    missing = error.need_bytes - error.have_bytes
    if missing <= 0:
        return None
    effect = f"{format_bytes(missing)} must get free"
    if error.others_bytes is not None:
        effect += f"; others hold {format_bytes(error.others_bytes)}"
    return Fix("stop other processes on the GPU", effect, missing)


def _what_others_count_for(boot: LoggedBoot) -> Fix | None:
    """Free what others hold, where the engine took it for its own, as vLLM 0.6.4 does."""
    if boot.total_bytes is None or boot.free_bytes is None or boot.non_torch_bytes is None:
        return None
    others = boot.total_bytes - boot.free_bytes
    if others < MANY_OTHERS * boot.total_bytes or boot.non_torch_bytes < others / 2:
        return None
    effect = f"{format_bytes(others)} that others hold come off the pool"
    return Fix("stop other processes on the GPU", effect, others)


def _as_many_as_have_a_state(boot: LoggedBoot) -> Fix | None:
    fitting = boot.error.fitting_seqs if boot.error is not None else None
    change = engine_flag(boot.engine, "slots", fitting)
    if not fitting or change is None:
        return None
    return Fix(change, f"{fitting:,} requests have a state", 0)


_Maker = Callable[[LoggedBoot], Fix | None]
_MAKERS: dict[OutcomeKind, tuple[_Maker, ...]] = {
    "request larger than pool": (
        more_of_the_device,
        shorter_length,
        eight_bit_cache,
        smaller_step,
        no_estimate,
        twice_the_gpus,
    ),
    "no room for pool": (
        _what_others_count_for,
        more_of_the_device,
        smaller_step,
        no_estimate,
        twice_the_gpus,
    ),
    "weights do not fit": (fewer_layers,),
    "step does not fit": (smaller_pass,),
    "capture out of headroom": (_less_of_the_device, _half_the_rows, _no_recording),
    "pool does not fit": (_less_of_the_device, shorter_context, half_the_cache),
    "free memory below utilization": (_make_others_leave, _what_is_free),
    "others hold the memory": (_make_others_leave,),
    "too many requests for state": (_as_many_as_have_a_state,),
    "out of memory while serving": (_less_of_the_device,),
}
