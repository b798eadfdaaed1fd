"""The native operators are built once, into a cache that names what they were made from."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, local

import pytest

from nanoserve.errors import KernelError
from nanoserve.kernels import kernel_build
from nanoserve.kernels.kernel_build import (
    BuildPlan,
    build_kernels,
    cache_folder,
    find_compiler,
    plan_build,
)

# Writes its own output file, and its arguments beside it.
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "{version}"; exit 0; fi
for last; do :; done
echo "$@" >> "{log}"
echo library > "$last"
"""
# Says through its standard input, a socket, that it compiles, and does not end before that does.
WAITING = """#!/bin/sh
if [ "$1" = --version ]; then echo "{version}"; exit 0; fi
for last; do :; done
echo part > "$last"
echo compiling >&0
read -r line
exit 1
"""
HOLDER = "from nanoserve.kernels.kernel_build import build_kernels; build_kernels()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of its own, with no compiler in reach."""
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(kernel_build, "COMPILERS", ("no-such-compiler",))
    return tmp_path


def pretend_compiler(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = COMPILER, version: str = "1"
) -> Path:
    path = folder / "compiler"
    path.write_text(text.format(version=version, log=folder / "log"))
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return folder / "log"


def test_no_compiler_is_said_with_what_to_install(folder: Path) -> None:
    """The error names what was looked for."""
    assert find_compiler() is None
    with pytest.raises(KernelError, match=r"none of no-such-compiler.*apt-get install"):
        build_kernels()


def test_a_second_build_finds_the_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is called once, on every source, and the library lies in the cache."""
    log = pretend_compiler(folder, monkeypatch)
    assert not plan_build().is_built

    path = build_kernels()

    assert build_kernels() == path
    assert plan_build().is_built
    assert path.parent == cache_folder() == folder / "cache" / "kernels"
    (call,) = log.read_text().splitlines()
    assert "-march=native" in call
    assert all(name in call for name in ("attention.cpp", "layer_ops.cpp", "api.cpp"))


def test_another_compiler_or_architecture_is_another_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a library was made from decides its name."""
    pretend_compiler(folder, monkeypatch)
    paths = {plan_build().library_path, plan_build("x86-64").library_path}
    pretend_compiler(folder, monkeypatch, version="2")
    paths.add(plan_build().library_path)

    assert len(paths) == 3


def let_each_find_nothing(
    num_threads: int, monkeypatch: pytest.MonkeyPatch, num_times: int = 1
) -> None:
    """Make every thread see so many times that nothing is built before any of them builds."""
    barrier, asked = Barrier(num_threads, timeout=60), local()

    def is_built(plan: BuildPlan) -> bool:
        was_built = plan.library_path.exists()
        asked.times = getattr(asked, "times", 0) + 1
        if asked.times <= num_times:
            barrier.wait()
        return was_built

    monkeypatch.setattr(BuildPlan, "is_built", property(is_built))


def build_at_once(num_threads: int) -> set[Path]:
    with ThreadPoolExecutor(num_threads) as threads:
        started = [threads.submit(build_kernels) for _ in range(num_threads)]
        return {one.result() for one in started}


def test_builds_at_once_are_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first compiles, the others wait for it; nothing else is left in the cache."""
    log = pretend_compiler(folder, monkeypatch)
    let_each_find_nothing(4, monkeypatch)

    (path,) = build_at_once(4)

    assert len(log.read_text().splitlines()) == 1
    assert path.read_text() == "library\n"
    assert list(cache_folder().iterdir()) == [path]


def test_builds_without_locks_leave_one_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system has none, each compiles in a folder that no other one deletes."""

    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    log = pretend_compiler(folder, monkeypatch)
    let_each_find_nothing(4, monkeypatch, num_times=2)  # the second time would be under the lock

    (path,) = build_at_once(4)

    assert len(log.read_text().splitlines()) == 4
    assert path.read_text() == "library\n"
    assert list(cache_folder().iterdir()) == [path]


@contextmanager
def a_process_that_builds() -> Iterator[subprocess.Popen[bytes]]:
    """Run one whose compiler is at work, until the end of the body at the latest."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=theirs.fileno())
        try:
            assert ours.recv(64) == b"compiling\n"
            yield holder
        finally:
            holder.kill()
            holder.wait()


def test_a_builder_that_is_killed_holds_up_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for it builds then."""
    pretend_compiler(folder, monkeypatch, WAITING)
    lock, was_held = fcntl.flock, []

    with a_process_that_builds() as holder:

        def kill_and_lock(file: int, operation: int) -> None:
            with pytest.raises(BlockingIOError):
                lock(file, operation | fcntl.LOCK_NB)
            was_held.append(True)
            holder.kill()
            lock(file, operation)

        monkeypatch.setattr(fcntl, "flock", kill_and_lock)
        pretend_compiler(folder, monkeypatch)
        path = build_kernels()

    assert was_held == [True]
    assert path.read_text() == "library\n"


def test_what_a_killed_build_left_is_cleared_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a later one, once no build can be at work there; the folder of another's stays."""
    pretend_compiler(folder, monkeypatch)
    left, busy = (cache_folder() / f"building-{name}" for name in ("left", "busy"))
    for one in (left, busy):
        one.mkdir(parents=True)
        (one / "part").write_text("")
    os.utime(left, (1, 1))

    path = build_kernels()

    assert sorted(cache_folder().iterdir()) == sorted([busy, path])


def test_a_failed_build_says_what_the_compiler_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first error line is quoted, and nothing is left in the cache."""
    failing = """#!/bin/sh
[ "$1" = --version ] && exit 0
echo "a warning" >&2
echo "ops.h:1: error: no such vector" >&2
exit 1
"""
    pretend_compiler(folder, monkeypatch, failing)

    with pytest.raises(KernelError, match=r"status 1: ops\.h:1: error: no such vector"):
        build_kernels()
    assert list(cache_folder().iterdir()) == []


def test_a_linker_that_finds_no_space_is_quoted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason stands before the line that says that there was an error."""
    failing = """#!/bin/sh
if [ "$1" = --version ]; then exit 0; fi
echo "/usr/bin/ld: final link failed: No space left on device" >&2
echo "collect2: error: ld returned 1 exit status" >&2
exit 1
"""
    pretend_compiler(folder, monkeypatch, failing)

    with pytest.raises(KernelError, match="No space left on device"):
        build_kernels()


def test_a_compiler_may_speak_any_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says is for people; a byte that is no UTF-8 is no reason to stop."""
    failing = '#!/bin/sh\nprintf "error: d\\351fectueux" >&2; exit 1\n'
    pretend_compiler(folder, monkeypatch, failing)

    with pytest.raises(KernelError, match=r"status 1: error: d.fectueux"):
        build_kernels()


def test_a_cache_that_cannot_be_written_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file where the cache should be is named in the error."""
    pretend_compiler(folder, monkeypatch)
    (folder / "cache").write_text("")

    with pytest.raises(
        KernelError, match=r"The cache .*cache/kernels cannot be written: .*NANOSERVE_CACHE"
    ):
        build_kernels()


def test_the_desktop_s_cache_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no setting of our own, which comes first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path / "own"))
    assert cache_folder("weights") == tmp_path / "own" / "weights"

    monkeypatch.delenv("NANOSERVE_CACHE")

    assert cache_folder("weights") == tmp_path / "xdg" / "nanoserve" / "weights"


@pytest.mark.parametrize("relative", ["", "cache"])
def test_without_a_setting_the_cache_is_the_user_s(
    monkeypatch: pytest.MonkeyPatch, relative: str
) -> None:
    """The cache is below ~/.cache; a relative folder is no setting."""
    monkeypatch.delenv("NANOSERVE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", relative)

    assert cache_folder() == Path.home() / ".cache" / "nanoserve" / "kernels"
