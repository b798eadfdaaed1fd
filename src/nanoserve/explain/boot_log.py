"""From the text of a start-up log, whichever engine wrote it, to what it says of the boot.

Recognises the engine by how many of its signs the text holds, takes the last boot of a log
that shows several, and never raises, whatever the text. What each engine prints is in its
own module; `boot_outcome` says what the figures mean.
"""

from nanoserve.explain.llamacpp_log import LLAMACPP_LOG
from nanoserve.explain.log_errors import BootMarks, find_error, total_of_failure
from nanoserve.explain.log_format import (
    LogFormat,
    likeness,
    other_error,
    place_boot,
    read_log,
)
from nanoserve.explain.log_text import PlainLog, plain_log
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.explain.nanoserve_log import NANOSERVE_LOG
from nanoserve.explain.sglang_log import SGLANG_LOG
from nanoserve.explain.tensorrt_log import TENSORRT_LOG
from nanoserve.explain.vllm_log import VLLM_LOG

_WHEN_ALIKE = ("nanoserve", "sglang", "vllm", "llama.cpp", "tensorrt-llm")  # the first wins
_MAX_BOOTS = 4  # of one log looked at, from its end
_NO_MARKS = BootMarks(refusals=(), stages=VLLM_LOG.marks.stages)

FORMATS = {
    log.engine: log for log in (VLLM_LOG, SGLANG_LOG, TENSORRT_LOG, LLAMACPP_LOG, NANOSERVE_LOG)
}


def read_boot_log(text: str) -> LoggedBoot:
    """Return what a start-up log says; an empty `LoggedBoot` where it says nothing.

    Args:
        text: Anything: a log, a paste that is cut, colours, another file altogether.
    """
    return read_plain_log(plain_log(text))


def read_plain_log(log: PlainLog) -> LoggedBoot:
    """Return what a log says; places in it count from its start."""
    engine = recognise_engine(log)
    if engine is None:
        return _of_no_engine(log.text)
    layout = FORMATS[engine]
    starts = _boot_starts(log.text, layout)
    ends = [*starts[1:], len(log.text)]
    boots = list(zip(starts, ends, strict=True))
    for start, end in reversed(boots[-_MAX_BOOTS:]):
        found = _read(layout, log.text, start, end)
        if found.error is not None or found.is_ready or found.pool_bytes is not None:
            return found
    return _read(layout, log.text, *boots[-1])


def recognise_engine(plain: PlainLog) -> str | None:
    """Return the engine most of whose signs the text holds; None where it holds none.

    Of two that are as likely, the one whose name the other's logs do not hold: SGLang runs
    some of vLLM's layers, and both print what TensorRT-LLM's kernels are called.
    """
    points = {engine: likeness(FORMATS[engine], plain) for engine in _WHEN_ALIKE}
    engine = max(points, key=lambda name: points[name])
    return engine if points[engine] else None


def _read(layout: LogFormat, plain: str, start: int, end: int) -> LoggedBoot:
    return place_boot(read_log(layout, plain[start:end]), start)


def _of_no_engine(plain: str) -> LoggedBoot:
    """Read a failed allocation or a driver's complaint that could be anybody's."""
    error = find_error(plain, _NO_MARKS) or other_error(plain, _NO_MARKS)
    return LoggedBoot(total_bytes=total_of_failure(plain)[0], error=error)


def _boot_starts(plain: str, layout: LogFormat) -> list[int]:
    """Return where each boot of a log starts; 0 alone where it does not say.

    What stands before the first start belongs to no boot where there are several.
    """
    starts: list[int] = []
    position = plain.find(layout.start)
    while position >= 0:
        starts.append(position)
        position = plain.find(layout.start, position + len(layout.start))
    return starts if len(starts) > 1 else [0]
