"""Changes for llama.cpp, which holds what it is asked for and can leave layers to the host.

Its figures are sums over all cards, and a failed allocation is one card's: of several cards
nothing is promised.
"""

import math

from nanoserve.explain.engine_flags import eight_bit_share, engine_flag
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.explain.suggested_fix import SIXTEEN_BIT, Fix
from nanoserve.units import format_bytes

_FILL = 0.9  # share of what is free that is worth filling: buffers are made piece by piece
_CONTEXT_STEP = 256
_SMALLEST_PASS = 64  # rows of one pass; fewer waste the card


def fewer_layers(boot: LoggedBoot) -> Fix | None:
    """Leave to the host the layers whose weights do not fit, in proportion to their number."""
    need, free = _need(boot), boot.free_bytes
    layers = boot.num_device_layers or boot.num_layers
    change_of = boot.engine == "llama.cpp" and _is_one_card(boot)
    if not change_of or not need or free is None or not layers:
        return None
    fitting = min(layers - 1, int(layers * _FILL * free / need))
    change = engine_flag(boot.engine, "layers", fitting)
    if fitting < 1 or change is None:
        return None
    held = round(need * fitting / layers)
    effect = f"{fitting} of {layers} layers take {format_bytes(held)} of {format_bytes(free)}"
    return Fix(change, effect, need - held)


def shorter_context(boot: LoggedBoot) -> Fix | None:
    """Cut the context to what is free beside the weights."""
    need, room = _need(boot), _room(boot)
    length = boot.max_model_len
    if not need or room is None or not length or room <= 0:
        return None
    fitting = int(length * _FILL * room / need) // _CONTEXT_STEP * _CONTEXT_STEP
    change = engine_flag(boot.engine, "length", fitting)
    if not 0 < fitting < length or change is None:
        return None
    held = round(need * fitting / length)
    return Fix(change, f"the cache takes {format_bytes(held)} of {format_bytes(room)}", need - held)


def half_the_cache(boot: LoggedBoot) -> Fix | None:
    """Halve the cache's bytes, where it has 16 bits and about half of it fits."""
    need, room = _need(boot), _room(boot)
    change, share = engine_flag(boot.engine, "eight bits"), eight_bit_share(boot.engine)
    is_sixteen_bit = boot.kv_cache_dtype in SIXTEEN_BIT
    if not is_sixteen_bit or not need or room is None or change is None or share is None:
        return None
    held = math.floor(need * share)
    if held > _FILL * room:
        return None
    effect = (
        f"the cache takes {format_bytes(held)} of {format_bytes(room)}; values in 8 bits need "
        "flash attention"
    )
    return Fix(change, effect, need - held)


def smaller_pass(boot: LoggedBoot) -> Fix | None:
    """Shrink the rows of one pass: compute buffers are in proportion to them."""
    need, room, most = _need(boot), _room(boot), boot.micro_batch_tokens
    if not need or room is None or not most or room <= 0:
        return None
    shrink = 2
    while need / shrink > _FILL * room and most // shrink >= _SMALLEST_PASS:
        shrink *= 2
    change = engine_flag(boot.engine, "step", most // shrink)
    if most // shrink < _SMALLEST_PASS or change is None:
        return None
    held = need // shrink
    effect = f"compute buffers take {format_bytes(held)} of {format_bytes(room)}"
    return Fix(change, effect, need - held)


def _need(boot: LoggedBoot) -> int | None:
    return boot.error.need_bytes if boot.error is not None else None


def _room(boot: LoggedBoot) -> int | None:
    """Return what one card has free beside what is already there."""
    if boot.engine != "llama.cpp" or not _is_one_card(boot) or boot.free_bytes is None:
        return None
    return boot.free_bytes - (boot.weight_bytes or 0) - (boot.pool_bytes or 0)


def _is_one_card(boot: LoggedBoot) -> bool:
    return boot.num_devices == 1
