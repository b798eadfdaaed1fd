"""From the text of a start-up log, whichever engine wrote it, to what it says of the boot.

Recognises the engine by how many of its marks the text holds, takes the last boot of a log
that shows several, and never raises, whatever the text. What each engine prints is in its
own module; `boot_outcome` says what the figures mean.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from nanoserve.plan import llamacpp_log, nanoserve_log, sglang_log, tensorrt_log, vllm_log
from nanoserve.plan.log_text import plain_log
from nanoserve.plan.logged_boot import LoggedBoot

_MAX_BOOTS = 4  # of one log looked at, from its end


class EngineReader(NamedTuple):
    """How one engine's log is recognised, cut and read."""

    marks: tuple[str, ...]
    start: str
    read: Callable[[str], LoggedBoot]


READERS = {
    "vllm": EngineReader(vllm_log.MARKS, vllm_log.START, vllm_log.read_vllm),
    "sglang": EngineReader(sglang_log.MARKS, sglang_log.START, sglang_log.read_sglang),
    "tensorrt-llm": EngineReader(
        tensorrt_log.MARKS, tensorrt_log.START, tensorrt_log.read_tensorrt
    ),
    "llama.cpp": EngineReader(llamacpp_log.MARKS, llamacpp_log.START, llamacpp_log.read_llamacpp),
    "nanoserve": EngineReader(
        nanoserve_log.MARKS, nanoserve_log.START, nanoserve_log.read_nanoserve
    ),
}


def read_boot_log(text: str) -> LoggedBoot:
    """Return what a start-up log says; an empty `LoggedBoot` where it says nothing.

    Args:
        text: Anything: a log, a paste that is cut, colours, another file altogether.
    """
    plain = plain_log(text)
    engine = recognise_engine(plain)
    if engine is None:
        return _of_no_engine(plain)
    reader = READERS[engine]
    boots = _boots(plain, reader.start)
    for boot in reversed(boots[-_MAX_BOOTS:]):
        found = _read(reader, boot)
        if found.error is not None or found.is_ready or found.pool_bytes is not None:
            return found
    return _read(reader, boots[-1])


def recognise_engine(plain: str) -> str | None:
    """Return the engine most of whose marks the text holds; None where it holds none."""
    hits = {
        engine: sum(mark in plain for mark in reader.marks) for engine, reader in READERS.items()
    }
    engine = max(hits, key=lambda name: hits[name])
    return engine if hits[engine] else None


def _read(reader: EngineReader, text: str) -> LoggedBoot:
    """Read one boot. A server that came to serve was stopped by nothing that came before."""
    found = reader.read(text)
    if found.is_ready and found.error is not None and found.error.stage != "serving":
        return replace(found, error=None)
    return found


def _of_no_engine(plain: str) -> LoggedBoot:
    """Read a failed allocation that could be anybody's."""
    found = vllm_log.read_vllm(plain)
    return LoggedBoot(total_bytes=found.total_bytes, error=found.error)


def _boots(plain: str, start: str) -> list[str]:
    """Cut a log at each start of the engine; one part where it does not say."""
    parts = plain.split(start)
    return [plain] if len(parts) <= 2 else [start + part for part in parts[1:]]
