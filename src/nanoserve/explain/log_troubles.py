"""What stops a boot that is not the card's memory, in the words of libraries all engines use.

Asked only where no engine refused and no allocation failed. Such lines also stand in the
logs of boots that went on, so a server that came to serve is never judged by them.
"""

import re

from nanoserve.explain.log_errors import ErrorPattern
from nanoserve.explain.logged_boot import ErrorKind, LoggedError

_ANCHORS: dict[ErrorKind, tuple[str, ...]] = {
    "driver": (
        "NVIDIA driver on your system is too old",
        "CUDA driver version is insufficient",
        "no kernel image is available for execution",
        "Found no NVIDIA driver",
        "No CUDA GPUs are available",
        "Failed to infer device type",
        "no CUDA-capable device is detected",
        "Driver/library version mismatch",
        "CUDA error: invalid device ordinal",
        "CUDA_ERROR_NO_DEVICE",
        "forward compatibility was attempted on non supported HW",
        "CUDA unknown error",
        "unsupported display driver / cuda driver combination",
        "Unexpected error from cudaGetDeviceCount",
    ),
    "model not found": (
        "is not a local folder and is not a valid model identifier",
        "You are trying to access a gated repo",
        "GatedRepoError",
        "RepositoryNotFoundError",
        "401 Client Error",
        "403 Client Error",
        "404 Client Error",
        "LocalEntryNotFoundError",
        "Repo id must be in the form",
        "Cannot find any model weights",
        "failed to open GGUF file",
        "does not appear to have a file named",
    ),
    "port in use": ("address already in use", "Address already in use", "couldn't bind HTTP"),
    "host memory": (
        "died with <Signals.SIGKILL",
        "exit code: -9",
        "exitcode: -9",
        "exited with code 137",
        "OOMKilled",
        "Out of memory: Killed process",
        "Unable to allocate shared memory",
        "DefaultCPUAllocator: can't allocate memory",
        "DefaultCPUAllocator: not enough memory",
        "No space left on device",
        "Bus error",
        "std::bad_alloc",
        "node running low on memory",
        "exceeds the memory usage threshold",
        "out of memory: Killed process",
        "oom-kill:",
        "[Errno 12] Cannot allocate memory",
        "Resource temporarily unavailable (shared memory)",
        "ray.exceptions.OutOfMemoryError",
    ),
}
TROUBLES = tuple(
    ErrorPattern(anchor, kind) for kind, anchors in _ANCHORS.items() for anchor in anchors
)
TROUBLES += (
    ErrorPattern(
        "Failed core proc(s):", "host memory", re.compile(r"\{[^{}]{0,200}: -9\b"), None, True
    ),
    ErrorPattern("MemoryError", "host memory", re.compile(r"(?<![A-Za-z])MemoryError"), None, True),
    # A shell's last word on what the system ended.
    ErrorPattern("Killed", "host memory", re.compile(r"(?<!\S)Killed\s{0,9}\Z"), None, True),
)
_RAISED = re.compile(r"\b(?:[A-Za-z_][\w.]{0,80})?(?:Error|Exception): (?P<words>\S.{0,280})")
_NO_CAUSE = (
    "Engine core initialization failed",
    "Engine process failed to start",
    "WorkerProc initialization failed",
    "EngineCore encountered an issue",
    "cancelled",
)
_OF_MEMORY = re.compile(r"\bout of (?:device |GPU )?memory\b|\bOOM\b|insufficient GPU memory")
_MAX_RAISED = 20  # exceptions looked at, from the first traceback on
_RAISED_CHARS = 100_000  # of a traceback in which its exception is looked for
_LAST_CHARS = 1_000  # of a text, in which an exception that ended it stands


def raised_error(text: str) -> LoggedError | None:
    """Return the first exception of the first traceback; None where there is none.

    One that only says that another process failed is passed over. A paste may begin within
    the traceback.
    """
    traceback = text.find("Traceback (most recent call last)")
    if traceback < 0:
        traceback = text.find('File "')
    return None if traceback < 0 else _first_raised(text, traceback)


def ending_error(text: str) -> LoggedError | None:
    """Return the first exception near a text's end; None where there is none.

    Of a paste that holds a traceback's last lines alone, or a process's last words.
    """
    return _first_raised(text, max(0, len(text) - _LAST_CHARS))


def _first_raised(text: str, start: int) -> LoggedError | None:
    found = _RAISED.finditer(text, start, start + _RAISED_CHARS)
    for _, match in zip(range(_MAX_RAISED), found, strict=False):
        if not match["words"].startswith(_NO_CAUSE):
            kind: ErrorKind = "out of memory" if _OF_MEMORY.search(match[0]) else "other error"
            return LoggedError(kind, match[0].strip(), position=match.start())
    return None
