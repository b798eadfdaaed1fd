"""Signals before a server serves: nothing stays behind, and the exit code is a shell's."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from nanoserve.cli.command_run import run_command
from nanoserve.errors import ModelError, NanoserveError, OptionError
from tests.builders import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[3]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
NOTES = {
    signal.SIGINT: b"",
    signal.SIGTERM: b"nanoserve: SIGTERM ended it.\n",
    signal.SIGHUP: b"nanoserve: SIGHUP ended it.\n",
}

# A compiler of two programs: the second writes a file of its own and works on and on.
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo fake; exit 0; fi
: > "$TMPDIR/ccXXXX.s"
sleep {seconds} &
echo $$ $! > "{told}"
wait
"""


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator["Popen[bytes]"]:
    """Run Python in a session of its own; what is left of it at the end is killed."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    with Popen(
        [sys.executable, *arguments],
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=os.environ | {"PYTHONPATH": path} | environment,
        start_new_session=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def read_until(pipe: int, word: bytes) -> bytes:
    """Return what comes through a pipe, up to a word and what came with it."""
    poll, read = select.poll(), b""
    poll.register(pipe, select.POLLIN)
    while word not in read:
        assert poll.poll(1000 * TIMEOUT_S), read
        piece = os.read(pipe, 65536)
        assert piece, read
        read += piece
    return read


def stdout_of(child: "Popen[bytes]") -> int:
    assert child.stdout is not None
    return child.stdout.fileno()


def end(child: "Popen[bytes]", *numbers: int) -> tuple[int, bytes, bytes]:
    """Send signals; return the exit code, and what was printed since."""
    for number in numbers:
        child.send_signal(number)
    out, err = child.communicate(timeout=TIMEOUT_S)
    return child.returncode, out, err


def has_ended(process: int, timeout_s: float) -> bool:
    """Whether a process, by its file descriptor, has ended or does so in time."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


@pytest.mark.parametrize("number", CODES)
def test_a_compiler_that_works_goes_with_the_command(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Both of its programs, the library's folder and the compiler's own files."""
    told, compiler = tmp_path / "told", tmp_path / "compiler"
    os.mkfifo(told)
    pipe = os.open(told, os.O_RDONLY | os.O_NONBLOCK)
    compiler.write_text(COMPILER.format(seconds=10 * TIMEOUT_S, told=told))
    compiler.chmod(0o755)
    folders = {"NANOSERVE_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    command = ("-m", "nanoserve", "kernels", "build")
    with process(*command, CXX=str(compiler), **folders) as child:
        programs = [os.pidfd_open(int(word)) for word in read_until(pipe, b"\n").split()]
        assert not any(has_ended(program, 0) for program in programs)
        code, _, err = end(child, number)

    assert (code, err) == (CODES[number], NOTES[number])
    assert all(has_ended(program, TIMEOUT_S) for program in programs)
    for descriptor in (pipe, *programs):
        os.close(descriptor)
    assert list((tmp_path / "cache" / "kernels").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "compiler", "told"]


@pytest.mark.parametrize("number", CODES)
def test_a_boot_leaves_no_part_and_no_hidden_cursor(number: signal.Signals, tmp_path: Path) -> None:
    """Under its bar, while a thread writes what it packed."""
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm"}  # for Rich
    with process("-m", "tests.booting_process", str(tmp_path), **terminal) as child:
        before = read_until(stdout_of(child), b"stalled\n")
        (part,) = tmp_path.glob("*.part")
        code, out, err = end(child, number)

    printed = before + out
    assert part.suffix == ".part"
    assert (code, err) == (CODES[number], NOTES[number])
    assert list(tmp_path.iterdir()) == []
    assert b"\x1b[?25l" in printed
    assert b"\x1b[?25h" in printed.rpartition(b"\x1b[?25l")[2]


def test_a_signal_that_comes_twice_is_one(tmp_path: Path) -> None:
    """Sent to a group and passed on by make: what ends does so in peace."""
    with process("-m", "tests.booting_process", str(tmp_path)) as child:
        read_until(stdout_of(child), b"stalled\n")
        # Stopped, so that the second does not come when Python no longer asks for signals.
        both = (signal.SIGTERM, signal.SIGHUP)
        code, _, err = end(child, signal.SIGSTOP, *both, signal.SIGCONT)

    assert code in (CODES[signal.SIGTERM], CODES[signal.SIGHUP])  # whichever Python sees first
    assert err.count(b"ended it.") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_hangup_that_is_ignored_stays_so() -> None:
    """A command that nohup started outlives its terminal."""
    code = (
        "import signal, sys\n"
        "from nanoserve.cli.command_run import run_command\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "def command():\n"
        "    signal.raise_signal(signal.SIGHUP)\n"
        "    print('alive')\n"
        "run_command(command)"
    )
    with process("-c", code) as child:
        assert end(child) == (0, b"alive\n", b"")


@pytest.mark.parametrize("module", ["typer", "nanoserve.cli.option_flags"])
def test_ctrl_c_is_silent_while_the_command_line_loads(module: str, tmp_path: Path) -> None:
    """No traceback of an import, and the exit code of a shell."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.abc, signal, sys\n"
        "class Interrupter(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupter())\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "nanoserve", "--version"],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"},
        timeout=TIMEOUT_S,
        check=False,
    )

    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OptionError("--x is 1."), 2, "nanoserve: --x is 1.\n"),
        (NanoserveError("no"), 1, "nanoserve: no\n"),
        (ModuleNotFoundError(name="torch"), 2, "nanoserve: This needs torch, which is not inst"),
        (KeyboardInterrupt(), 130, ""),
        (OSError(28, "No space left on device"), 1, "nanoserve: what is printed cannot be"),
    ],
)
def test_errors_become_exit_codes(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error we know is a line on stderr."""

    def command() -> None:
        raise error

    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            run_command(command)
    finally:
        signal.signal(signal.SIGINT, before)

    assert ended.value.code == code
    assert capsys.readouterr().err.startswith(said)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full", ">&- 2>&-"])
def test_an_error_keeps_its_code_where_nobody_can_be_told(closed: str) -> None:
    """And a stderr that is closed does not put messages among results."""
    command = f'exec "$0" -m nanoserve plan no-such-model --gpu H100 {closed}'
    result = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable],
        stdout=PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        timeout=TIMEOUT_S,
        check=False,
    )

    assert (result.returncode, result.stdout) == (ModelError.exit_code, b"")


def test_a_thread_may_run_a_command() -> None:
    """Only the main one may say what signals do; a message is one as ever."""
    error = OptionError("--x is 1.")

    def command() -> None:
        raise error

    before = [signal.getsignal(number) for number in CODES]
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(run_command, command).exception(TIMEOUT_S)

    assert isinstance(ended, SystemExit)
    assert ended.code == OptionError.exit_code
    assert [signal.getsignal(number) for number in CODES] == before


def test_a_module_of_ours_that_is_missing_is_no_extra() -> None:
    """It is a fault, and shown as one."""

    def command() -> None:
        raise ModuleNotFoundError(name="nanoserve.no_such")

    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(ModuleNotFoundError):
            run_command(command)
    finally:
        signal.signal(signal.SIGINT, before)
