"""A recorded boot (one JSON object of figures in GiB) to what a log of it would say.

The records are start-ups of real engines, written down by hand from their logs; keys are
checked by type and anything else about them is taken as it is. `error_text_short` is a
person's short account of the error, not the engine's line: it is read by the words such
accounts use, and says nothing where they leave open what was being done.
"""

import re
from collections.abc import Mapping
from typing import Any

from nanoserve.explain.log_patterns import count, sized
from nanoserve.explain.logged_boot import ErrorKind, LoggedBoot, LoggedError, Stage
from nanoserve.units import GIB

_MAX_ACCOUNT_CHARS = 1000
_ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "nanoserve")
_SIZES = {
    "weight_bytes": "weights_gib",
    "consumed_bytes": "consumed_gib",
    "activation_bytes": "activation_peak_gib",
    "non_torch_bytes": "non_torch_gib",
    "graph_bytes": "cuda_graph_gib",
    "graph_estimate_bytes": "cuda_graph_estimate_gib",
    "pool_bytes": "kv_cache_gib",
}
_COUNTS = {
    "num_blocks": "num_gpu_blocks",
    "block_size": "block_size",
    "pool_tokens": "kv_cache_tokens",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "tensor_parallel": "tensor_parallel",
}


def boot_of_record(record: Mapping[str, Any]) -> LoggedBoot:
    """Return a record's figures and its error's account; its outcome and notes are left out.

    Args:
        record: One object of the file; a value of the wrong type counts as absent.
    """
    gpu = record.get("gpu")
    device = gpu if isinstance(gpu, Mapping) else {}
    sizes: dict[str, Any] = {name: _gib(record.get(key)) for name, key in _SIZES.items()}
    counts: dict[str, Any] = {name: _count(record.get(key)) for name, key in _COUNTS.items()}
    eager = record.get("enforce_eager")
    return LoggedBoot(
        engine=_engine(record.get("engine")),
        version=_text(record.get("engine_version")),
        model=_text(record.get("model")),
        total_bytes=_gib(device.get("mem_gib")),
        free_bytes=_gib(device.get("free_gib")),
        utilization=_number(record.get("gpu_memory_utilization")),
        max_concurrency=_number(record.get("max_concurrency")),
        kv_cache_dtype=_text(record.get("kv_cache_dtype")),
        is_eager=eager if isinstance(eager, bool) else None,
        error=error_of_account(_text(record.get("error_text_short")) or ""),
        **sizes,
        **counts,
    )


_OUT_OF_MEMORY = r"out of memory|\boom\b|alloc\w* fail|fail\w* to alloc|tried to alloc|malloc fail"
_CAPTURE = r"captur|graph|record(ing|ed)|warm\w*.?up"
_WEIGHTS = r"\bload|(creat\w*|init\w*) (the )?(weights|model)|(weights?|model) init"
_POOL = r"\bkv|_kv|cache|pool"
_LENGTH = r"\bcontext|len(gth)?\b|token|request|sequence"
_NOTHING = (
    r"\b(no|nothing|none|zero|without|negative)\b|(?<![\d.,])0\b(?![.,]\d)|below zero|[\s=(]-\d"
)
_MORE = (
    r"exceed|(larger|longer|more|bigger) than|too (small|large|long|big|little)|[<>]|\bvs\b|not enough"
    r"|\bfit\b|\bneed|available|requir|\bonly\b|holds?\b|suggest|estimate|can ?no?t|can't"
)
# Asked in this order: what ran out, and of the rest what was refused.
_ACCOUNTS: tuple[tuple[str, ErrorKind, Stage | None], ...] = (
    (rf"(?=.*({_OUT_OF_MEMORY}))(?=.*({_CAPTURE}))", "out of memory", "capture"),
    (rf"(?=.*({_OUT_OF_MEMORY}))(?=.*({_WEIGHTS}))", "out of memory", "weights"),
    (rf"(?=.*({_OUT_OF_MEMORY}))(?=.*({_POOL}))", "out of memory", "pool"),
    (_OUT_OF_MEMORY, "unclear", None),
    (r"(mamba|state)\b.{0,20}\b(block|slot)s?\b", "too many requests for state", "pool"),
    (r"(captur\w*|graphs?) (needs?|needed|wants?) ", "out of memory", "capture"),
    (
        rf"(?!.*({_POOL}|\bcontext|token))(?=.*\bfree\b)"
        r"(?=.*(<|less than|below|refus|not enough|desired|request|want))",
        "free memory below utilization",
        "start",
    ),
    (
        rf"(?=.*({_NOTHING}))(?=.*({_POOL}|block|token))|blocks is positive|mem.fraction.static"
        r"|(no|not enough) (available )?memory (left )?for (the )?(kv )?cache",
        "no room for pool",
        "pool",
    ),
    (
        rf"(?!.*({_POOL}|{_LENGTH}|budget))(?=.*(weights|model))"
        rf"(?=.*(not fit|{_MORE}|\bon (a |an |the |one )?\d))",
        "out of memory",
        "weights",
    ),
    (
        rf"(?=.*({_POOL}|{_LENGTH}|\d gib|\d{{4}}))(?=.*({_MORE}))",
        "request larger than pool",
        "pool",
    ),
)
_NEEDED = re.compile(r"([\d.]{1,12} GiB) (?:is )?needed|(?:needs|requires) ([\d.]{1,12} GiB)")
_AVAILABLE = re.compile(r"([\d.]{1,12})(?: GiB)? available")
_TOKENS = re.compile(r"context (\d{1,9})|^(\d{1,9}) context|needed for (\d{1,9})")
_FITTING = re.compile(r"(?:estimate|estimated maximum) (\d{1,9})")


def error_of_account(text: str) -> LoggedError | None:
    """Return the error that a person's short account tells; None where there is no account.

    Args:
        text: E.g. `4.76 GiB needed for 65536, 1.56 available; estimate 15984`.
    """
    folded = text[:_MAX_ACCOUNT_CHARS].casefold()
    for words, kind, stage in _ACCOUNTS:
        if re.search(words, folded):
            return LoggedError(
                kind,
                text[:_MAX_ACCOUNT_CHARS],
                stage,
                need_bytes=_sized(_NEEDED, text),
                have_bytes=_sized(_AVAILABLE, text),
                need_tokens=_counted(_TOKENS, text),
                fitting_len=_counted(_FITTING, text),
            )
    return LoggedError("unclear", text[:_MAX_ACCOUNT_CHARS]) if text else None


def _sized(regex: re.Pattern[str], text: str) -> int | None:
    match = regex.search(text[:_MAX_ACCOUNT_CHARS])
    group = match and next(group for group in match.groups() if group)
    return sized(group if group.endswith("GiB") else f"{group} GiB") if group else None


def _counted(regex: re.Pattern[str], text: str) -> int | None:
    match = regex.search(text[:_MAX_ACCOUNT_CHARS])
    return count(next(group for group in match.groups() if group)) if match else None


def _engine(value: Any) -> str | None:
    """Return the engine whose log the record's is like; forks write as their origin does."""
    name = _text(value) or ""
    found = next((one for one in _ENGINES if one in name.casefold()), None)
    return found or ("vllm" if "vllm" in name.casefold() else None)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e15 else None


def _gib(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else round(number * GIB)


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or number < 0 else int(number)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
