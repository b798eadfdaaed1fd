"""What stopped a boot: failed allocations and refusals, and what was being done then.

Knows PyTorch's wording of a failed allocation, which vLLM and SGLang share; each engine
brings its own refusals and its own marks of where a boot stands.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from nanoserve.plan.log_patterns import WINDOW, positions, sized
from nanoserve.plan.logged_boot import ErrorKind, LoggedError, Stage

_TEXT_CHARS = 300
_TRACE_CHARS = 12_000  # a failed allocation's traceback stands in so much text before it
_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "HIP out of memory",
    "NPU out of memory",
    "XPU out of memory",
    "CUDA error: out of memory",
    "OutOfMemoryError",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "hipErrorOutOfMemory",
    "RESOURCE_EXHAUSTED",
    "Memory_Allocation_Failure",
)
_SIZE = r"([\d.,]{1,20}\s?[KMG]i?B)"
_TRIED = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_FREE = re.compile(rf"(?:of which {_SIZE} is free|{_SIZE} free)")
_TOTAL = re.compile(rf"(?:total capacity of {_SIZE}|{_SIZE} total capacity)")
_ALLOCATED = re.compile(rf"(?:{_SIZE} is allocated by PyTorch|{_SIZE} already allocated)")


class StageMark(NamedTuple):
    """Text after which a boot is in a stage."""

    anchor: str
    stage: Stage


class ErrorPattern(NamedTuple):
    """One refusal an engine prints.

    Attributes:
        anchor: Text that the line holds.
        kind: What it means.
        regex: Searched from the anchor on; groups are named after `LoggedError`'s fields.
        stage: During what it is raised; None: where the boot stands.
    """

    anchor: str
    kind: ErrorKind
    regex: re.Pattern[str] | None = None
    stage: Stage | None = None


class Memory(NamedTuple):
    """What a failed allocation said of the device; None where it did not."""

    total_bytes: int | None
    allocated_bytes: int | None


def find_error(
    text: str,
    refusals: tuple[ErrorPattern, ...],
    marks: tuple[StageMark, ...],
    trace_marks: tuple[StageMark, ...],
    readers: Mapping[str, Callable[[str], int | None]],
) -> LoggedError | None:
    """Return the first thing that stopped the boot; None where nothing did.

    What comes first is the cause; what follows are other processes noticing.

    Args:
        text: One boot, plain.
        refusals: The engine's own.
        marks: Where its boot stands.
        trace_marks: The same from names of functions in a traceback; these win.
        readers: From the name of a group of `refusals` to how its text is read.
    """
    refused = [
        (position, pattern)
        for pattern in refusals
        for position in [next(positions(text, pattern.anchor), None)]
        if position is not None
    ]
    failed = min((p for p in (text.find(a) for a in _OUT_OF_MEMORY) if p >= 0), default=None)
    position, refusal = min(refused, key=lambda found: found[0], default=(None, None))
    if refusal is not None and position is not None and (failed is None or position <= failed):
        return _refusal(text, position, refusal, marks, readers)
    if failed is None:
        return None
    return _failed_allocation(text, failed, stage_at(text, failed, marks, trace_marks))


def failed_memory(text: str) -> Memory:
    """Return what the first failed allocation said of the device."""
    failed = min((p for p in (text.find(a) for a in _OUT_OF_MEMORY) if p >= 0), default=None)
    if failed is None:
        return Memory(None, None)
    window = text[failed : failed + WINDOW]
    return Memory(_first_size(_TOTAL, window), _first_size(_ALLOCATED, window))


def stage_at(
    text: str,
    position: int,
    marks: tuple[StageMark, ...],
    trace_marks: tuple[StageMark, ...] = (),
) -> Stage:
    """Return what the boot was doing at a place in its log."""
    start = max(0, position - _TRACE_CHARS)
    is_traced = text.rfind("Traceback", start, position)
    if is_traced >= 0:
        traced = _last_mark(text, is_traced, position, trace_marks)
        if traced is not None:
            return traced
    return _last_mark(text, 0, position, marks) or "start"


def _last_mark(text: str, start: int, end: int, marks: tuple[StageMark, ...]) -> Stage | None:
    found = [(text.rfind(mark.anchor, start, end), mark.stage) for mark in marks]
    position, stage = max(found, key=lambda pair: pair[0], default=(-1, None))
    return stage if position >= 0 else None


def _failed_allocation(text: str, position: int, stage: Stage) -> LoggedError:
    window = text[position : position + WINDOW]
    return LoggedError(
        "out of memory",
        window[:_TEXT_CHARS].strip(),
        stage,
        need_bytes=_first_size(_TRIED, window),
        have_bytes=_first_size(_FREE, window),
    )


def _refusal(
    text: str,
    position: int,
    refusal: ErrorPattern,
    marks: tuple[StageMark, ...],
    readers: Mapping[str, Callable[[str], int | None]],
) -> LoggedError:
    stage = refusal.stage or stage_at(text, position, marks)
    error = LoggedError(refusal.kind, text[position : position + _TEXT_CHARS].strip(), stage)
    match = refusal.regex and refusal.regex.search(text, position, position + WINDOW)
    if not match:
        return error
    figures: dict[str, Any] = {
        name: readers[name](group) for name, group in match.groupdict().items() if group is not None
    }
    return replace(error, **figures)


def _first_size(regex: re.Pattern[str], window: str) -> int | None:
    match = regex.search(window)
    return None if match is None else sized(next(group for group in match.groups() if group))
