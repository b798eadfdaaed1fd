"""What an operator could change on a boot that went through, with what it gives.

Works on the log's own figures, and says nothing where they do not reach.
"""

from collections.abc import Callable

from nanoserve.capacity.engine_defaults import default_batch
from nanoserve.explain.engine_flags import eight_bit_flag, engine_flag
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.explain.pool_fixes import device_bytes, most_utilization, profile_of_boot
from nanoserve.explain.pool_sum import PoolSum, pool_sum
from nanoserve.explain.preemption import HEADROOM
from nanoserve.explain.suggested_fix import SIXTEEN_BIT, STEP, Fix
from nanoserve.units import GIB, MIB, format_bytes

_SPARE_BYTES = GIB // 2  # left of a card beside what recorded steps take
_WORTH_BYTES = 100 * MIB  # a gain below it is not worth a line
_SGLANG_SPARE_BYTES = 8 * GIB  # its manual calls 5 to 8 GB free a good value once it serves
_FEW_REQUESTS = 4  # of the longest length; with fewer, long requests queue behind each other


def suggest_headroom(boot: LoggedBoot) -> tuple[Fix, ...]:
    """Return changes that would give more, those without a price first.

    Args:
        boot: One that went through.
    """
    pool = pool_sum(boot)
    if pool is None or pool.pool_bytes <= 0:
        return ()
    found = (make(boot, pool) for make in _MAKERS)
    return tuple(fix for fix in found if fix is not None)


def _overestimated_graphs(boot: LoggedBoot, pool: PoolSum) -> Fix | None:
    """Give the pool what the estimate of recorded steps took off in excess."""
    estimate, taken = boot.graph_estimate_bytes, boot.graph_bytes
    if estimate is None or taken is None or not boot.is_graph_estimate_in_budget:
        return None
    excess = estimate - taken
    if excess < _WORTH_BYTES or boot.utilization is None or not boot.total_bytes:
        return None
    steps = int(excess / boot.total_bytes / STEP)
    utilization = round(boot.utilization + steps * STEP, 2)
    change = engine_flag(boot.engine, "utilization", utilization)
    if steps < 1 or change is None or utilization > most_utilization(boot):
        return None
    gained = round(steps * STEP * boot.total_bytes)
    effect = (
        f"recorded steps took {format_bytes(taken)}, {format_bytes(excess)} less than was taken "
        f"off for them: {pool.with_more(gained).describe()}"
    )
    return Fix(change, effect, gained)


def _more_of_the_device(boot: LoggedBoot, pool: PoolSum) -> Fix | None:
    """Raise the utilization as far as recorded steps, others and a margin leave room."""
    device = device_bytes(boot)
    if boot.utilization is None or not device or boot.engine == "sglang":
        return _less_left_over(boot, pool)
    graphs = 0 if boot.is_graph_estimate_in_budget else boot.graph_bytes
    if graphs is None:
        return None
    others = 0 if boot.free_bytes is None else device - boot.free_bytes
    most = min(most_utilization(boot), (device - others - graphs - _SPARE_BYTES) / device)
    return _raised(boot, pool, int(most / STEP) * STEP, device)


def _less_left_over(boot: LoggedBoot, pool: PoolSum) -> Fix | None:
    """Raise SGLang's fraction until what is free once it serves is what its manual asks for."""
    if boot.left_bytes is None or boot.free_bytes is None or boot.utilization is None:
        return None
    excess = boot.left_bytes - _SGLANG_SPARE_BYTES
    most = boot.utilization + int(excess / boot.free_bytes / STEP) * STEP
    return _raised(boot, pool, most, boot.free_bytes)


def _raised(boot: LoggedBoot, pool: PoolSum, most: float, device: int) -> Fix | None:
    utilization = round(most, 2)
    gained = round((utilization - (boot.utilization or 0)) * device)
    change = engine_flag(boot.engine, "utilization", utilization)
    if change is None or gained < _WORTH_BYTES:
        return None
    left = format_bytes(device - round(utilization * device))
    after = pool.with_more(gained)
    tokens = f", {after.tokens:,} tokens" if after.tokens else ""
    effect = f"{after.describe()}{tokens}; {left} stay free for peaks a clean start does not show"
    return Fix(change, effect, gained)


def _as_many_as_fit(boot: LoggedBoot, pool: PoolSum) -> Fix | None:
    """Take no more requests at once than fit at full length, or say what each slot has."""
    fit, slots = pool.concurrency, _slots(boot)
    if fit is None or slots is None or fit >= slots:
        return None
    change = engine_flag(boot.engine, "slots", max(1, int(HEADROOM * fit)))
    tokens = pool.tokens
    if change is None or tokens is None:
        return None
    effect = (
        f"only if requests grow to {pool.max_model_len or 0:,} tokens: {fit:,.1f} fit. {slots:,} at "
        f"once have {tokens // slots:,} tokens each before any is preempted"
    )
    return Fix(change, effect, 0)


def _slots(boot: LoggedBoot) -> int | None:
    """Return the most requests at once: as logged, or vLLM's default for the card."""
    if boot.max_num_seqs is not None or boot.engine != "vllm" or boot.total_bytes is None:
        return boot.max_num_seqs
    return default_batch(profile_of_boot(boot), boot.total_bytes)[0]


def _eight_bit_cache(boot: LoggedBoot, pool: PoolSum) -> Fix | None:
    change = eight_bit_flag(boot.engine, boot.version)
    tokens = boot.tokens or pool.tokens
    if change is None or not tokens or boot.kv_cache_dtype not in SIXTEEN_BIT:
        return None
    after = pool.with_half_cache()
    if pool.tokens is None or abs(pool.tokens / tokens - 1) > _SAME:
        return Fix(change, f"up to {2 * tokens:,} tokens instead of {tokens:,}{_STATES}", 0)
    return Fix(change, f"{2 * tokens:,} tokens instead of {tokens:,}: {after.describe()}", 0)


def _shorter_length(boot: LoggedBoot, pool: PoolSum) -> Fix | None:
    """Halve the longest length where only few requests of it fit."""
    fit, length = pool.concurrency, pool.max_model_len
    if fit is None or not length or fit >= _FEW_REQUESTS:
        return None
    change = engine_flag(boot.engine, "length", length // 2)
    return None if change is None else Fix(change, pool.with_length(length // 2).describe(), 0)


def _more_layers(boot: LoggedBoot, pool: PoolSum) -> Fix | None:
    """Bring more of llama.cpp's layers to one card, where there is room for them."""
    on, all_layers, weights = boot.num_device_layers, boot.num_layers, boot.weight_bytes
    if not on or not all_layers or on >= all_layers or boot.num_devices != 1:
        return None
    if weights is None or boot.free_bytes is None:
        return None
    each = weights / on
    left = boot.free_bytes - weights - pool.pool_bytes - (boot.activation_bytes or 0)
    more = min(all_layers - on, int((left - _SPARE_BYTES) / each))
    change = engine_flag(boot.engine, "layers", on + more)
    if more < 1 or change is None:
        return None
    effect = f"{more} more layers take {format_bytes(round(more * each))} of {format_bytes(left)}"
    return Fix(change, effect, 0)


_SAME = 0.02  # tokens by the pool's bytes and as counted: further apart, not all is keys and values
_STATES = "; layers that keep a state of one size do not shrink"
_Maker = Callable[[LoggedBoot, PoolSum], Fix | None]
_MAKERS: tuple[_Maker, ...] = (
    _overestimated_graphs,
    _more_of_the_device,
    _more_layers,
    _as_many_as_fit,
    _eight_bit_cache,
    _shorter_length,
)
