"""Changes that make a pool hold a request: more of the device, less asked of it, more cards.

Each does the pool's arithmetic again and is None where the pool still would not do.
"""

import math
from dataclasses import replace

from nanoserve.capacity.engine_defaults import default_batch
from nanoserve.capacity.engine_profile import (
    EngineProfile,
    find_profile,
    profile_of,
    version_numbers,
)
from nanoserve.explain.engine_flags import eight_bit_flag, engine_flag
from nanoserve.explain.logged_boot import DEFAULT_BLOCK_SIZE, LoggedBoot
from nanoserve.explain.pool_sum import PoolSum, pool_sum
from nanoserve.explain.suggested_fix import MAX_UTILIZATION, SIXTEEN_BIT, STEP, Fix
from nanoserve.units import GIB, format_bytes

_SMALL_POOL_BYTES = GIB  # asked for where nobody knows what one request takes
_SMALLEST_STEP = 512  # tokens; below it a prefill wastes the card
_SHRINKS = (2, 4, 8)


def profile_of_boot(boot: LoggedBoot) -> EngineProfile:
    """Return the rules of a boot's engine; without a readable version its newest ones."""
    engine = boot.engine or "vllm"
    numbers = None if boot.version is None else version_numbers(boot.version)
    return find_profile(engine) if numbers is None else profile_of(engine, numbers)


def device_bytes(boot: LoggedBoot) -> int | None:
    """Return what the utilization is a share of; SGLang's is one of what was free."""
    free = boot.free_bytes if boot.engine == "sglang" else None
    return free or boot.total_bytes


def missing_bytes(boot: LoggedBoot, pool: PoolSum) -> int:
    """Return how much larger the pool must be for one request; never negative."""
    return max(0, (pool.request_bytes or _SMALL_POOL_BYTES) - pool.pool_bytes)


def more_of_the_device(boot: LoggedBoot) -> Fix | None:
    """Raise the utilization by what is missing, in hundredths, while it stays free."""
    pool, device = pool_sum(boot), device_bytes(boot)
    if pool is None or not device or boot.utilization is None:
        return None
    steps = math.ceil(missing_bytes(boot, pool) / device / STEP)
    utilization = round(boot.utilization + steps * STEP, 2)
    change = engine_flag(boot.engine, "utilization", utilization)
    gained = round((utilization - boot.utilization) * device)
    after = pool.with_more(gained)
    if change is None or not steps or utilization > most_utilization(boot):
        return None
    headroom = format_bytes(round((1 - utilization) * device))
    effect = f"{after.describe()}; {headroom} stay for the rest"
    return Fix(change, effect, gained) if after.holds_a_request else None


def most_utilization(boot: LoggedBoot) -> float:
    """Return the largest share that can be asked for: what was free, and a margin."""
    device = device_bytes(boot)
    if boot.free_bytes is None or not device or boot.engine == "sglang":
        return MAX_UTILIZATION
    return min(MAX_UTILIZATION, boot.free_bytes / device)


def shorter_length(boot: LoggedBoot) -> Fix | None:
    """Serve the longest request that the pool holds."""
    error, pool = boot.error, pool_sum(boot)
    length = boot.max_model_len or (error.need_tokens if error else None)
    fitting = _fitting_len(boot, pool)
    if length is None or fitting is None or not 0 < fitting < length:
        return None
    change = engine_flag(boot.engine, "length", fitting)
    need = pool.request_bytes if pool is not None else None
    freed = round(need * (1 - fitting / length)) if need else 0
    return None if change is None else Fix(change, f"a request of {fitting:,} tokens fits", freed)


def _fitting_len(boot: LoggedBoot, pool: PoolSum | None) -> int | None:
    """Return the length that fits: by the engine's word, else by the ratio of bytes."""
    error = boot.error
    if error is not None and (error.fitting_len or error.have_tokens):
        return error.fitting_len or error.have_tokens
    if boot.tokens is not None or pool is None or pool.tokens is None:
        return boot.tokens
    block_size = boot.block_size or DEFAULT_BLOCK_SIZE
    return pool.tokens // block_size * block_size


def eight_bit_cache(boot: LoggedBoot) -> Fix | None:
    """Halve what a request takes, where keys and values have 16 bits and half of it fits."""
    pool = pool_sum(boot)
    change = eight_bit_flag(boot.engine, boot.version)
    if change is None or pool is None or boot.kv_cache_dtype not in SIXTEEN_BIT:
        return None
    after = pool.with_half_cache()
    if pool.request_bytes is None or after.request_bytes is None or not after.holds_a_request:
        return None
    return Fix(change, after.describe(), pool.request_bytes - after.request_bytes)


def smaller_step(boot: LoggedBoot) -> Fix | None:
    """Shrink slots and token budget alike: the profiled peak is the larger of their terms.

    Source: `engine_memory.activation_bytes`: both terms are in proportion, but for a fixed
    part that no setting changes.
    """
    profile, pool = profile_of_boot(boot), pool_sum(boot)
    if boot.engine != "vllm" or not profile.is_chunked or boot.activation_bytes is None:
        return None
    if pool is None or boot.total_bytes is None:
        return None
    slots, tokens = default_batch(profile, boot.total_bytes)
    slots, tokens = boot.max_num_seqs or slots, boot.max_num_batched_tokens or tokens
    scalable = boot.activation_bytes - round(profile.fixed_gib[2] * GIB)
    for shrink in _SHRINKS:
        after = pool.with_more(round(scalable * (1 - 1 / shrink)))
        is_useful = slots >= shrink and tokens // shrink >= _SMALLEST_STEP and scalable > 0
        if is_useful and after.pool_bytes >= pool.pool_bytes + missing_bytes(boot, pool):
            flags = (
                engine_flag(boot.engine, "step", tokens // shrink),
                engine_flag(boot.engine, "slots", slots // shrink),
            )
            effect = f"the step's peak shrinks to a {_PARTS[shrink]}: about {after.describe()}"
            return Fix(" ".join(filter(None, flags)), effect, after.pool_bytes - pool.pool_bytes)
    return None


_PARTS = {2: "half", 4: "quarter", 8: "eighth"}


def no_estimate(boot: LoggedBoot) -> Fix | None:
    """Record nothing, where the estimate of it was taken off the budget."""
    pool, estimate = pool_sum(boot), boot.graph_estimate_bytes
    change = engine_flag(boot.engine, "eager")
    if pool is None or not estimate or not boot.is_graph_estimate_in_budget or change is None:
        return None
    after = pool.with_more(estimate)
    if after.pool_bytes < pool.pool_bytes + missing_bytes(boot, pool):
        return None
    return Fix(change, f"{after.describe()}; decoding is slower", estimate)


def twice_the_gpus(boot: LoggedBoot) -> Fix | None:
    """Halve each card's weights; a request is counted whole, since not all caches divide."""
    pool = pool_sum(boot)
    weights = boot.weight_bytes if boot.weight_bytes is not None else boot.consumed_bytes
    gpus = boot.tensor_parallel or 1
    change = engine_flag(boot.engine, "gpus", 2 * gpus)
    if pool is None or weights is None or change is None:
        return None
    profile = profile_of_boot(boot)
    joined = round((profile.peer_gib[1] - profile.lone_gib[1]) * GIB) if gpus == 1 else 0
    gained = weights // 2 - joined
    after = replace(pool, pool_bytes=pool.pool_bytes + gained)
    if not after.holds_a_request or gained < missing_bytes(boot, pool):
        return None
    return Fix(change, f"half the weights on each of {2 * gpus}: {after.describe()}", gained)
