"""Building the native operators with the machine's own compiler, once.

Owns the compiler's choice, its flags, and the cache of what was built. The cached file's
name says everything it was made from, so that a new source, compiler or CPU is a new file.
Processes that want it at once wait for the one that builds it.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nanoserve.error_reasons import reason_of
from nanoserve.errors import KernelError

SOURCE_FOLDER = Path(__file__).parent / "csrc"
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp")
NATIVE = "native"  # whatever the machine that builds has
TIMEOUT_S = 300.0  # a build takes seconds; on a machine that swaps, minutes
_BUILDING = "building-"  # begins the name of a folder that a library is built in
_ABANDONED_S = 4 * TIMEOUT_S  # since such a folder last changed; its build has long timed out


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What would be built, and where it lies once it is.

    Attributes:
        compiler: Path of the compiler.
        compiler_version: The first line it says of itself.
        flags: What it is called with, beside the sources.
        library_path: The cached library; need not exist.
    """

    compiler: str
    compiler_version: str
    flags: tuple[str, ...]
    library_path: Path

    @property
    def is_built(self) -> bool:
        """Whether the library is in the cache."""
        return self.library_path.exists()


def find_compiler() -> str | None:
    """Return the path of a C++ compiler: $CXX, or the first of `COMPILERS` on the PATH."""
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        path = shutil.which(name) if name else None
        if path is not None:
            return path
    return None


def plan_build(architecture: str = NATIVE) -> BuildPlan:
    """Say what a build would use, and where it would go.

    Args:
        architecture: As the compiler's `-march` names it.

    Raises:
        KernelError: There is no compiler, or it does not run.
    """
    compiler = find_compiler()
    if compiler is None:
        message = (
            f"Native operators need a C++ compiler, and none of {', '.join(COMPILERS)} is on the "
            "PATH. Install one (on Debian: apt-get install g++)."
        )
        raise KernelError(message)
    version = _run([compiler, "--version"]).partition("\n")[0]
    flags = (*FLAGS, f"-march={architecture}")
    digest = hashlib.sha256("\0".join((version, *flags, _cpu_flags())).encode())
    for path in sorted(SOURCE_FOLDER.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return BuildPlan(compiler, version, flags, cache_folder() / f"{digest.hexdigest()[:16]}.so")


def build_kernels(architecture: str = NATIVE) -> Path:
    """Return the path of the library, after building it if it is not in the cache.

    One builds at a time: who comes meanwhile waits, and finds the library. A lock ends with
    its process, so that nobody waits for a builder that was killed.

    Raises:
        KernelError: There is no compiler, it failed, or the cache cannot be written.
    """
    plan = plan_build(architecture)
    if plan.is_built:
        return plan.library_path
    folder = plan.library_path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock_on(folder):
            if not plan.is_built:  # nor by whoever was waited for
                _build(plan)
    except OSError as error:
        message = (
            f"The cache {folder} cannot be written: {reason_of(error)}. "
            "Set NANOSERVE_CACHE to a folder of yours."
        )
        raise KernelError(message) from error
    return plan.library_path


def _build(plan: BuildPlan) -> None:
    """Build the library in a folder of its own, and move it into place whole."""
    cache = plan.library_path.parent
    _clear_away(cache)
    sources = sorted(str(path) for path in SOURCE_FOLDER.glob("*.cpp"))
    with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=cache) as folder:
        built = Path(folder) / plan.library_path.name
        _run([plan.compiler, *plan.flags, *sources, "-o", str(built)], folder)
        built.replace(plan.library_path)


def _clear_away(cache: Path) -> None:
    """Delete what killed builds left.

    By age, lock or no lock: another machine that shares the folder may have a lock of its own.
    """
    for left in cache.glob(f"{_BUILDING}*"):
        with contextlib.suppress(OSError):  # another process clears away, too
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left)


@contextlib.contextmanager
def _lock_on(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder, after whoever holds it; the folder itself bears it.

    Some file systems have none for folders, NFS for one: builds run side by side there.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def cache_folder(part: str = "kernels") -> Path:
    """Return where built libraries lie, or another part of the cache.

    Below $NANOSERVE_CACHE, else nanoserve in $XDG_CACHE_HOME, else ~/.cache/nanoserve.
    A relative $XDG_CACHE_HOME is none, as its specification says.
    """
    own, shared = os.environ.get("NANOSERVE_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    if own:
        return Path(own) / part
    if not os.path.isabs(shared):
        shared = os.path.expanduser("~/.cache")  # a user without a home has a folder ~ here
    return Path(shared) / "nanoserve" / part


def _run(command: list[str], scratch: str | None = None) -> str:
    """Return what a command prints; all it started goes with it where it is cut short.

    Args:
        command: A compiler and its arguments.
        scratch: Folder for its own files; None leaves it to the compiler.
    """
    environment = None if scratch is None else os.environ | {"TMPDIR": scratch}
    started: list[subprocess.Popen[str]] = []

    def start() -> None:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",  # compilers speak the locale's language, in bytes of their own
            env=environment,
            process_group=0,  # a compiler is several programs
        )
        started.append(process)

    try:
        # A signal raises in the main thread alone: never between a process and who knows of it.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(int).result()  # the thread is there, and waited for from here on
            thread.submit(start).result()
        output, complaint = started[0].communicate(timeout=TIMEOUT_S)
    except BaseException as error:
        for process in started:
            _kill(process)
        if isinstance(error, OSError | subprocess.TimeoutExpired):
            message = f"{command[0]} does not run: {error}"
            raise KernelError(message) from error
        raise
    if started[0].returncode != 0:
        lines = complaint.splitlines()  # of the linker, "error" alone names no reason
        telling = (line for line in lines if "error" in line or "failed" in line)
        said = next(telling, complaint)
        message = f"Building native operators, {command[0]} failed with status {started[0].returncode}: {said.strip()}"
        raise KernelError(message)
    return output


def _kill(process: "subprocess.Popen[str]") -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _cpu_flags() -> str:
    """Return what `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
