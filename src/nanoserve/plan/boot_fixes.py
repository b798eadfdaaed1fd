"""The smallest changes with which a logged boot would have gone through, each checked.

Works on the log's own figures: a change is offered only where its arithmetic, done again
with the change, holds. What takes the model's shape (another tensor-parallel size, other
weights) is left to a plan of that model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from nanoserve.plan.boot_outcome import OutcomeKind, name_outcome
from nanoserve.plan.logged_boot import DEFAULT_BLOCK_SIZE, LoggedBoot
from nanoserve.units import format_bytes

MAX_UTILIZATION = 0.97  # above it, a driver's own needs break a boot or a later step
_STEP = 0.01  # utilization is given in hundredths
_SIXTEEN_BIT = (None, "auto", "bfloat16", "bf16", "float16", "half", "f16")

_FLAGS = {
    "vllm": {
        "utilization": "--gpu-memory-utilization {:.2f}",
        "length": "--max-model-len {}",
        "eight bits": "--kv-cache-dtype fp8",
        "eager": "--enforce-eager",
    },
    "sglang": {
        "utilization": "--mem-fraction-static {:.2f}",
        "length": "--context-length {}",
        "eight bits": "--kv-cache-dtype fp8_e4m3",
        "eager": "--disable-cuda-graph",
    },
    "tensorrt-llm": {"length": "--max_seq_len {}"},
    "llama.cpp": {
        "length": "--ctx-size {}",
        "eight bits": "--cache-type-k q8_0 --cache-type-v q8_0",
    },
    "nanoserve": {
        "utilization": "--gpu-memory-utilization {:.2f}",
        "length": "--max-model-len {}",
        "eager": "--decode-mode eager",
    },
}


@dataclass(frozen=True, slots=True)
class Fix:
    """One change.

    Attributes:
        change: As it is typed for the engine, or what to do.
        effect: What it does, with numbers.
        freed_bytes: How much more there is, or less is asked for.
    """

    change: str
    effect: str
    freed_bytes: int


def suggest_fixes(boot: LoggedBoot) -> tuple[Fix, ...]:
    """Return changes any one of which would do, the gentlest first; none where none is known.

    Args:
        boot: A boot that failed.
    """
    makers = _MAKERS.get(name_outcome(boot).kind, ())
    fixes = (make(boot) for make in makers)
    return tuple(fix for fix in fixes if fix is not None)


def _device_bytes(boot: LoggedBoot) -> int | None:
    """Return what the utilization is a share of; SGLang's is one of what was free."""
    return boot.total_bytes or boot.free_bytes


def _flag(boot: LoggedBoot, name: str, value: float | None = None) -> str | None:
    flags = _FLAGS.get(boot.engine or "vllm", {})
    pattern = flags.get(name)
    return None if pattern is None else pattern.format(value)


def _shorter_length(boot: LoggedBoot) -> Fix | None:
    """Serve the longest request that the pool holds."""
    error = boot.error
    length = boot.max_model_len or (error.need_tokens if error else None)
    fitting = _fitting_len(boot, length)
    if length is None or fitting is None or not 0 < fitting < length:
        return None
    change = _flag(boot, "length", fitting)
    need = error.need_bytes if error else None
    freed = round(need * (1 - fitting / length)) if need else 0
    return None if change is None else Fix(change, f"a request of {fitting:,} tokens fits", freed)


def _fitting_len(boot: LoggedBoot, length: int | None) -> int | None:
    """Return the length that fits: by the engine's word, else by the ratio of bytes."""
    error = boot.error
    if error is not None and error.fitting_len:
        return error.fitting_len
    if error is not None and error.have_tokens:
        return error.have_tokens
    if length is not None and error is not None and error.need_bytes and error.have_bytes:
        block_size = boot.block_size or DEFAULT_BLOCK_SIZE
        return int(length * error.have_bytes / error.need_bytes) // block_size * block_size
    return boot.tokens


def _more_of_the_device(boot: LoggedBoot) -> Fix | None:
    """Raise the utilization by what is missing, in hundredths, while it stays free."""
    device_bytes = _device_bytes(boot)
    missing = _missing_bytes(boot)
    if not missing or boot.utilization is None or not device_bytes:
        return None
    steps = math.ceil(missing / device_bytes / _STEP)
    utilization = round(boot.utilization + steps * _STEP, 2)
    change = _flag(boot, "utilization", utilization)
    if change is None or utilization > _most_utilization(boot):
        return None
    gained = round((utilization - boot.utilization) * device_bytes)
    headroom = round((1 - utilization) * device_bytes)
    effect = f"{format_bytes(gained)} more for the pool; {format_bytes(headroom)} stay for the rest"
    return Fix(change, effect, gained) if gained >= missing else None


def _most_utilization(boot: LoggedBoot) -> float:
    device_bytes = _device_bytes(boot)
    if boot.free_bytes is None or not device_bytes:
        return MAX_UTILIZATION
    return min(MAX_UTILIZATION, boot.free_bytes / device_bytes)


def _missing_bytes(boot: LoggedBoot) -> int | None:
    """Return how much more the pool must hold for one request, or for anything at all."""
    error = boot.error
    if error is not None and error.need_bytes is not None and error.have_bytes is not None:
        return max(0, error.need_bytes - error.have_bytes)
    if boot.pool_bytes is not None and boot.pool_bytes <= 0:
        return 1 - boot.pool_bytes
    tokens, length = boot.tokens, boot.max_model_len
    if boot.pool_bytes and tokens and length and length > tokens:
        return math.ceil(boot.pool_bytes * (length / tokens - 1))
    return None


def _eight_bit_cache(boot: LoggedBoot) -> Fix | None:
    """Halve what a request takes, where keys and values have 16 bits and half of it fits."""
    error = boot.error
    change = _flag(boot, "eight bits")
    if change is None or error is None or boot.kv_cache_dtype not in _SIXTEEN_BIT:
        return None
    if error.need_bytes is None or error.have_bytes is None:
        return None
    halved = error.need_bytes // 2
    if halved > error.have_bytes:
        return None
    effect = f"a request takes {format_bytes(halved)} of {format_bytes(error.have_bytes)}"
    return Fix(change, effect, error.need_bytes - halved)


def _less_of_the_device(boot: LoggedBoot) -> Fix | None:
    """Lower the utilization by what the recording lacked: it lies outside the budget."""
    device_bytes = _device_bytes(boot)
    missing = _missing_bytes(boot)
    if missing is None or boot.utilization is None or not device_bytes:
        return None
    steps = max(1, math.ceil(missing / device_bytes / _STEP))
    utilization = round(boot.utilization - steps * _STEP, 2)
    change = _flag(boot, "utilization", utilization)
    freed = round((boot.utilization - utilization) * device_bytes)
    left = None if boot.pool_bytes is None else boot.pool_bytes - freed
    if change is None or utilization <= 0 or (left is not None and left <= 0):
        return None
    effect = f"{format_bytes(freed)} less for the pool, {format_bytes(missing)} were missing"
    return Fix(change, effect, freed)


def _no_recording(boot: LoggedBoot) -> Fix | None:
    change = _flag(boot, "eager")
    return None if change is None else Fix(change, "no step is recorded; decoding is slower", 0)


def _what_is_free(boot: LoggedBoot) -> Fix | None:
    """Ask for no more than was free at the start."""
    device_bytes = _device_bytes(boot)
    error = boot.error
    free = boot.free_bytes or (error.have_bytes if error else None)
    if free is None or not device_bytes:
        return None
    utilization = math.floor(free / device_bytes / _STEP) * _STEP
    change = _flag(boot, "utilization", utilization)
    if change is None or utilization <= 0:
        return None
    return Fix(change, f"{format_bytes(free)} are free", round(utilization * device_bytes))


def _make_others_leave(boot: LoggedBoot) -> Fix | None:
    missing = _missing_bytes(boot)
    if not missing:
        return None
    return Fix("stop other processes on the GPU", f"{format_bytes(missing)} must get free", missing)


_Maker = Callable[[LoggedBoot], Fix | None]
_MAKERS: dict[OutcomeKind, tuple[_Maker, ...]] = {
    "request larger than pool": (_more_of_the_device, _shorter_length, _eight_bit_cache),
    "no room for pool": (_more_of_the_device,),
    "capture out of headroom": (_less_of_the_device, _no_recording),
    "pool does not fit": (_less_of_the_device,),
    "free memory below utilization": (_make_others_leave, _what_is_free),
    "memory changed while measuring": (),
}
