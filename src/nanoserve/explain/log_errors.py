"""What stopped a boot: failed allocations and refusals, and what was being done then.

Knows PyTorch's wording of a failed allocation, which vLLM and SGLang share; each engine
brings its own refusals and its own marks of where a boot stands.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from nanoserve.explain.log_patterns import WINDOW, count, positions, sized, sized_or_gib
from nanoserve.explain.logged_boot import ErrorKind, LoggedError, Stage

_TEXT_CHARS = 300
_SAME_CHARS = 80  # of a failed allocation's words: enough to tell its size from others'
_TRACE_CHARS = 12_000  # a failed allocation's traceback stands in so much text before it
_OUT_OF_MEMORY = (
    "out of memory. Tried to allocate",  # PyTorch's, whatever it calls the device
    "CUDA out of memory",
    "HIP out of memory",
    "NPU out of memory",
    "XPU out of memory",
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "CUDA Error: out of memory",
    "CUDA driver error: out of memory",
    "HIP error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "Triton Error [HIP]: Code: 2",
    "OutOfMemoryError",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
    "hipErrorOutOfMemory",
    "HSA_STATUS_ERROR_OUT_OF_RESOURCES",
    "Cuda failure 2 'out of memory'",
    "Cuda failure 'out of memory'",
    "Failed to CUDA calloc",
    "OUT_OF_DEVICE_MEMORY",
    "ErrorOutOfDeviceMemory",
    "PI_ERROR_OUT_OF_RESOURCES",
    "MODULE:PT_DEVMEM Allocation failed",
    "RESOURCE_EXHAUSTED",
    "Ran out of memory in memory space hbm",
    "Memory_Allocation_Failure",
)
_RAISED_IN_SOURCE = ('Error("', 'Error(f"', 'Error(\n"')
_RAISED_AGAIN = ("direct cause of the following exception", "Process EngineCore", "Process Spawn")
_NEXT_CHARS = 2_000
_OF_THE_NODE = "ray.exceptions."  # before `OutOfMemoryError`: the machine's memory, not a card's
_BEFORE_A_POOL = ("weights", "profile")
_SIZE = r"([\d.,]{1,20}\s?[KMG]i?B)"
_TRIED = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_FREE = re.compile(rf"(?:of which {_SIZE} is free|{_SIZE} free)")
_TOTAL = re.compile(rf"(?:total capacity of {_SIZE}|{_SIZE} total capacity|max allowed: {_SIZE})")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_PROCESS = re.compile(rf"Process \d{{1,10}} has {_SIZE} memory in use")
_ALLOCATED = re.compile(rf"allocated memory {_SIZE} is allocated by PyTorch")


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
        needs_figures: Whether the anchor alone, without the expression, is no refusal.
    """

    anchor: str
    kind: ErrorKind
    regex: re.Pattern[str] | None = None
    stage: Stage | None = None
    needs_figures: bool = False


@dataclass(frozen=True, slots=True)
class BootMarks:
    """How one engine's log shows where a boot stands and what refused it.

    Attributes:
        refusals: What the engine itself refuses a boot with.
        stages: Text that says where the boot stands.
        traced_stages: The same from names of functions in a traceback; these win.
        hints: What is printed whatever stopped the boot; asked last.
        retries: Words after which the engine tries again: what failed before stopped nothing.
    """

    refusals: tuple[ErrorPattern, ...]
    stages: tuple[StageMark, ...]
    traced_stages: tuple[StageMark, ...] = ()
    hints: tuple[ErrorPattern, ...] = ()
    retries: tuple[str, ...] = ()


def without_retried(text: str, marks: BootMarks) -> str:
    """Return a log with what the engine tried again blanked, so that places stay the same."""
    last = max(
        (text.rfind(words) + len(words) for words in marks.retries if words in text), default=0
    )
    return " " * last + text[last:]


def find_error(text: str, marks: BootMarks) -> LoggedError | None:
    """Return the first refusal or failed allocation; None where there is neither.

    What comes first is the cause; what follows are other processes noticing.

    Args:
        text: One boot, plain.
        marks: Of its engine.
    """
    refused = _first_refusal(text, marks.refusals)
    failed = _first_failed_allocation(text)
    if refused is not None and (failed is None or refused[0] <= failed):
        return _refusal(text, refused, marks)
    if failed is None:
        return None
    return _failed_allocation(text, failed, _stage_of_failure(text, failed, marks))


def _stage_of_failure(text: str, position: int, marks: BootMarks) -> Stage | None:
    """Return the stage of a failed allocation, or of its next telling: processes repeat it.

    A paste may begin after the first telling's traceback, and end before the next is complete.
    """
    words = text[position : position + _SAME_CHARS]
    places = (position, text.find(words, position + 1), _end_of_raised_again(text, position))
    stages = (stage_at(text, place, marks) for place in places if place >= 0)
    return next((stage for stage in stages if stage is not None), None)


def _end_of_raised_again(text: str, position: int) -> int:
    """Return where the traceback of the same failure's next raise ends; -1 where there is none."""
    found = (text.find(words, position, position + _NEXT_CHARS) for words in _RAISED_AGAIN)
    start = min((place for place in found if place >= 0), default=-1)
    return start if start < 0 else min(len(text), start + _TRACE_CHARS)


def find_hint(
    text: str, patterns: tuple[ErrorPattern, ...], marks: BootMarks
) -> LoggedError | None:
    """Return the first of some patterns: what stopped a boot that no engine refused."""
    found = _first_refusal(text, patterns)
    return None if found is None else _refusal(text, found, marks)


def total_of_failure(text: str) -> tuple[int | None, int | None]:
    """Return the device's total as the first failed allocation says it, and where it stands."""
    failed = _first_failed_allocation(text)
    window = "" if failed is None else text[failed : failed + WINDOW]
    return _first_size(_TOTAL, window), failed


def stage_at(text: str, position: int, marks: BootMarks) -> Stage | None:
    """Return what the boot was doing at a place in its log; None where nothing shows it.

    A traceback knows best. What serves a request also runs the profiled step and the
    recorded ones, so its functions count only where no other's stand in the traceback, and
    where the lines before it do not end with the weights: then it was the profiled step.
    """
    start = max(0, position - _TRACE_CHARS)
    trace = text.rfind("Traceback", start, position)
    if trace < 0:
        trace = text.find('File "', start, position)  # a paste that starts within it
    traced: Stage | None = None
    if trace >= 0:
        booting = tuple(mark for mark in marks.traced_stages if mark.stage != "serving")
        for functions in (booting, marks.traced_stages):
            traced = _last_mark(text, trace, position, functions)
            if traced is not None and traced != "serving":
                return traced
    printed = _last_mark(text, 0, position, marks.stages)
    if traced == "serving":
        return "profile" if printed in _BEFORE_A_POOL else traced
    return printed


def _last_mark(text: str, start: int, end: int, marks: tuple[StageMark, ...]) -> Stage | None:
    found = [(text.rfind(mark.anchor, start, end), mark.stage) for mark in marks]
    position, stage = max(found, key=lambda pair: pair[0], default=(-1, None))
    return stage if position >= 0 else None


def _first_failed_allocation(text: str) -> int | None:
    found = (_first_of_a_card(text, anchor) for anchor in _OUT_OF_MEMORY)
    return min((position for position in found if position >= 0), default=None)


def _first_of_a_card(text: str, anchor: str) -> int:
    """Return where an anchor stands first that does not tell of the machine's memory."""
    for position in positions(text, anchor):
        if not text.endswith(_OF_THE_NODE, 0, position):
            return position
    return -1


def _failed_allocation(text: str, position: int, stage: Stage | None) -> LoggedError:
    window = text[position : position + WINDOW]
    have, own = _first_size(_FREE, window), _own_size(window)
    total = _first_size(_TOTAL, window)
    known = total is not None and have is not None and own is not None
    return LoggedError(
        "out of memory",
        window[:_TEXT_CHARS].strip(),
        stage,
        need_bytes=_first_size(_TRIED, window) or None,
        have_bytes=have,
        others_bytes=max(0, total - have - own) if known else None,  # type: ignore[operator]
        position=position,
    )


def _own_size(window: str) -> int | None:
    """Return what the failing process itself held.

    In a container PyTorch finds no process by its own number and lists all alike: the smallest
    that holds what PyTorch allocated is then taken for it.
    """
    own, allocated = _first_size(_OWN, window), _first_size(_ALLOCATED, window)
    if own is not None or allocated is None:
        return own
    listed = (sized(match[1]) for match in _PROCESS.finditer(window))
    return min((size for size in listed if size is not None and size >= allocated), default=None)


_Refusal = tuple[int, ErrorPattern, re.Match[str] | None]


def _first_refusal(text: str, patterns: tuple[ErrorPattern, ...]) -> _Refusal | None:
    found = (one for one in (_refused_by(text, pattern) for pattern in patterns) if one is not None)
    return min(found, key=lambda refusal: refusal[0], default=None)


def _refused_by(text: str, pattern: ErrorPattern) -> _Refusal | None:
    """Return the first place of a pattern, where its figures are if it needs them.

    A traceback shows the engine's own `raise` before what was raised: the latter is preferred.
    """
    in_source: _Refusal | None = None
    for position in positions(text, pattern.anchor):
        match = pattern.regex and pattern.regex.search(text, position, position + WINDOW)
        if not match and pattern.needs_figures:
            continue
        if not text.endswith(_RAISED_IN_SOURCE, 0, position):
            return position, pattern, match or None
        in_source = in_source or (position, pattern, match or None)
    return in_source


def _refusal(text: str, found: _Refusal, marks: BootMarks) -> LoggedError:
    position, pattern, match = found
    stage = pattern.stage or stage_at(text, position, marks)
    quote = text[position : position + _TEXT_CHARS].strip()
    error = LoggedError(pattern.kind, quote, stage, position=position)
    groups = match.groupdict() if match else {}
    figures: dict[str, Any] = {
        name: _READERS[name](group) for name, group in groups.items() if group is not None
    }
    needed = ("need_tokens", "need_bytes", "fitting_len", "fitting_seqs")
    figures = {name: value for name, value in figures.items() if value or name not in needed}
    return replace(error, **figures)


_READERS: dict[str, Callable[[str], int | None]] = {
    "need_tokens": count,
    "have_tokens": count,
    "fitting_len": count,
    "fitting_seqs": count,
    "need_bytes": sized_or_gib,
    "have_bytes": sized_or_gib,
}


def _first_size(regex: re.Pattern[str], window: str) -> int | None:
    match = regex.search(window)
    return None if match is None else sized(next(group for group in match.groups() if group))
