"""What became of a logged boot, and which line of its budget broke.

Judges by the error where the log shows one, and by the figures alone where it does not.
Knows no log's wording; what to change is not decided here.
"""

from dataclasses import dataclass
from typing import Literal

from nanoserve.explain.logged_boot import ErrorKind, LoggedBoot, LoggedError, Stage
from nanoserve.units import format_bytes

OutcomeKind = Literal[
    "ok",
    "weights do not fit",
    "step does not fit",
    "no room for pool",
    "pool does not fit",
    "request larger than pool",
    "capture out of headroom",
    "free memory below utilization",
    "others hold the memory",
    "memory changed while measuring",
    "too many requests for state",
    "out of memory while serving",
    "out of memory",
    "host memory",
    "driver",
    "model not found",
    "port in use",
    "unsupported",
    "option",
    "other error",
    "unknown",
]
_OF_STAGE: dict[Stage, OutcomeKind] = {
    "start": "weights do not fit",
    "weights": "weights do not fit",
    "profile": "step does not fit",
    "pool": "pool does not fit",
    "capture": "capture out of headroom",
    "serving": "out of memory while serving",
}
_OF_ERROR: dict[ErrorKind, OutcomeKind] = {
    "request larger than pool": "request larger than pool",
    "no room for pool": "no room for pool",
    "free memory below utilization": "free memory below utilization",
    "memory changed while measuring": "memory changed while measuring",
    "too many requests for state": "too many requests for state",
    "host memory": "host memory",
    "driver": "driver",
    "model not found": "model not found",
    "port in use": "port in use",
    "unsupported": "unsupported",
    "option": "option",
    "other error": "other error",
}
_BROKEN_LINES: dict[OutcomeKind, str] = {
    "weights do not fit": "weights",
    "step does not fit": "activations",
    "no room for pool": "kv pool",
    "pool does not fit": "kv pool",
    "request larger than pool": "kv pool",
    "capture out of headroom": "capture",
    "free memory below utilization": "other processes",
    "others hold the memory": "other processes",
    "memory changed while measuring": "other processes",
    "too many requests for state": "kv pool",
    "out of memory while serving": "activations",
}
_SERVES_LESS = ("sglang", "tensorrt-llm", "llama.cpp")  # than one longest request, unrefused
MANY_OTHERS = 0.05  # share of a card that is more than a desktop or a monitor holds


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a boot.

    Attributes:
        kind: Its name.
        broken_line: The part of the budget that broke, as `MemoryBudget` names parts; None
            where none did.
        reason: One sentence with the numbers.
    """

    kind: OutcomeKind
    broken_line: str | None
    reason: str

    @property
    def is_healthy(self) -> bool:
        """Whether the boot went through."""
        return self.kind == "ok"

    @property
    def is_for_memory(self) -> bool:
        """Whether memory stopped it, the card's or the machine's."""
        return self.broken_line is not None or self.kind in ("out of memory", "host memory")


def name_outcome(boot: LoggedBoot, request_bytes: int | None = None) -> Outcome:
    """Name what became of a boot.

    Args:
        boot: As read from a log, or made from recorded figures.
        request_bytes: What one request of `max_model_len` takes of the pool, where the model's
            shape is known; asked only where the log does not compare the two itself.
    """
    if boot.error is not None:
        kind = _kind_of_error(boot, boot.error, request_bytes)
    else:
        kind = _kind_of_figures(boot, request_bytes)
    return Outcome(kind, _BROKEN_LINES.get(kind), _reason(kind, boot))


def _kind_of_error(boot: LoggedBoot, error: LoggedError, request_bytes: int | None) -> OutcomeKind:
    if error.kind == "out of memory" and _others_are_in_the_way(boot, error):
        return "others hold the memory"
    if error.kind == "out of memory":
        return "out of memory" if error.stage is None else _OF_STAGE[error.stage]
    if error.kind in _OF_ERROR:
        return _OF_ERROR[error.kind]
    return _kind_of_shortage(boot, request_bytes) or "unknown"


def _kind_of_shortage(boot: LoggedBoot, request_bytes: int | None) -> OutcomeKind | None:
    """Return what the figures alone say was short of memory; None where none was."""
    if _weights_exceed_room(boot):
        return "weights do not fit"
    if _has_no_pool(boot):
        return "no room for pool"
    if boot.engine not in _SERVES_LESS and _is_under_one_request(boot, request_bytes):
        return "request larger than pool"
    return None


def _others_are_in_the_way(boot: LoggedBoot, error: LoggedError) -> bool:
    """Whether the failed allocation would have found room in what other processes hold."""
    if error.others_bytes is None or error.need_bytes is None or boot.total_bytes is None:
        return False
    would_do = error.need_bytes <= (error.have_bytes or 0) + error.others_bytes
    return would_do and error.others_bytes > MANY_OTHERS * boot.total_bytes


def _weights_exceed_room(boot: LoggedBoot) -> bool:
    room = boot.requested_bytes or boot.total_bytes
    return boot.weight_bytes is not None and room is not None and boot.weight_bytes > room


def _kind_of_figures(boot: LoggedBoot, request_bytes: int | None) -> OutcomeKind:
    if boot.is_ready:
        return "ok"
    if _has_no_pool(boot):
        return "no room for pool"
    if boot.engine not in _SERVES_LESS and _is_under_one_request(boot, request_bytes):
        return "request larger than pool"
    has_pool = any((boot.pool_bytes, boot.tokens, boot.max_concurrency, boot.graph_bytes))
    return "ok" if has_pool else _kind_without_pool(boot)


def _kind_without_pool(boot: LoggedBoot) -> OutcomeKind:
    """Judge a boot of which no pool is known: what was free, and the weights."""
    if _is_crowded(boot):
        return "free memory below utilization"
    return "weights do not fit" if _weights_exceed_room(boot) else "unknown"


def _has_no_pool(boot: LoggedBoot) -> bool:
    if boot.num_blocks == 0 or (boot.pool_bytes is not None and boot.pool_bytes <= 0):
        return True
    held = [boot.weight_bytes, boot.activation_bytes, boot.non_torch_bytes]
    requested = boot.requested_bytes
    if boot.pool_bytes is not None or requested is None or boot.weight_bytes is None:
        return False
    return sum(size or 0 for size in held) > requested


def _is_under_one_request(boot: LoggedBoot, request_bytes: int | None) -> bool:
    if boot.max_concurrency is not None:
        return boot.max_concurrency < 1
    if boot.tokens is not None and boot.max_model_len is not None:
        return boot.tokens < boot.max_model_len
    if boot.pool_bytes is None or request_bytes is None:
        return False
    return boot.pool_bytes < request_bytes


def _is_crowded(boot: LoggedBoot) -> bool:
    """Whether less was free than may be taken, on a boot that got no further."""
    if boot.free_bytes is None or boot.requested_bytes is None or boot.weight_bytes is not None:
        return False
    return boot.free_bytes < boot.requested_bytes and boot.pool_bytes is None


def _reason(kind: OutcomeKind, boot: LoggedBoot) -> str:
    """Return one or more sentences with the numbers that the log gives."""
    sentence = _sentence(kind, boot)
    return " ".join(filter(None, (sentence, _numbers(kind, boot), _addition(kind, boot))))


def _sentence(kind: OutcomeKind, boot: LoggedBoot) -> str:
    if kind == "ok" and not boot.is_ready:
        return "The pool was sized, and nothing had failed where the log ends."
    if kind == "step does not fit" and boot.engine == "llama.cpp":
        return "Memory ran out for the compute buffers, beside weights and cache."
    return _SENTENCES[kind]


def _numbers(kind: OutcomeKind, boot: LoggedBoot) -> str:
    error = boot.error
    if kind == "memory changed while measuring":
        return _free_twice(error)
    if error is not None and error.need_bytes is not None and error.have_bytes is not None:
        need, have = format_bytes(error.need_bytes), format_bytes(error.have_bytes)
        return f"{need} was needed and {have} was there."
    if error is not None and error.need_bytes is not None:
        return f"{format_bytes(error.need_bytes)} was needed."
    if error is not None and error.need_tokens is not None and error.have_tokens is not None:
        return f"{error.need_tokens:,} tokens were needed and {error.have_tokens:,} were there."
    if boot.pool_bytes is not None:
        return f"The KV pool came to {format_bytes(boot.pool_bytes)}."
    return ""


def _free_twice(error: LoggedError | None) -> str:
    """Return what was free before and after a profile, where the engine says both."""
    if error is None or error.need_bytes is None or error.have_bytes is None:
        return ""
    before, after = format_bytes(error.have_bytes), format_bytes(error.need_bytes)
    if before == after:
        return f"{before} was free before and after: none was freed, and none was seen taken."
    return f"{before} was free before it and {after} after."


def _addition(kind: OutcomeKind, boot: LoggedBoot) -> str:
    error = boot.error
    if kind == "capture out of headroom" and boot.engine == "vllm":
        return _IN_BUDGET if boot.is_graph_estimate_in_budget else _OUTSIDE
    if kind == "others hold the memory" and error is not None and error.others_bytes is not None:
        return f"Other processes hold {format_bytes(error.others_bytes)} of the card."
    return ""


_OUTSIDE = (
    "What is recorded lies outside the budget: it must fit in what the utilization leaves free."
)
_IN_BUDGET = "An estimate of it was taken off the budget, and was too low."
_SENTENCES: dict[OutcomeKind, str] = {
    "ok": "The boot went through.",
    "weights do not fit": "Memory ran out while the weights were loaded.",
    "step does not fit": "Memory ran out in the profiled step, before a pool was sized.",
    "no room for pool": "Weights and activations left nothing for the KV pool.",
    "pool does not fit": "Memory ran out while the KV pool was allocated.",
    "request larger than pool": "One request of the longest length is larger than the KV pool.",
    "capture out of headroom": "Memory ran out while steps were recorded.",
    "free memory below utilization": "Less memory was free at the start than the engine asks for.",
    "others hold the memory": "An allocation failed while other processes held much of the card.",
    "memory changed while measuring": "The engine did not find the free memory it expects.",
    "too many requests for state": "More requests at once are asked for than have a state.",
    "out of memory while serving": "Memory ran out after the server had started.",
    "out of memory": "Memory of the card ran out; the log does not say during what.",
    "host memory": "The machine's own memory or its shared memory ran out, not the card's.",
    "driver": "The engine found no device that it can use: a matter of driver, build or container.",
    "model not found": "The model's files could not be found or fetched.",
    "port in use": "The address to listen on is taken by another process.",
    "other error": "Something else than memory stopped it.",
    "unsupported": "The engine does not support the model, its weights or the card.",
    "option": "An option cannot be as it was given.",
    "unknown": "The log does not say what became of the boot.",
}
