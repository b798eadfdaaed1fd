"""`nanoserve serve`: boot with a line per stage, then the HTTP server."""

import gc
import json
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nanoserve import __version__
from nanoserve.error_reasons import reason_of
from nanoserve.errors import OptionError
from nanoserve.options import EngineOptions, ServerOptions
from nanoserve.plan.boot_info import boot_lines
from nanoserve.plan.boot_report import StageReport
from nanoserve.server.api_keys import read_api_keys

if TYPE_CHECKING:
    from nanoserve.launch.boot import BootedEngine

    Boot = Callable[[EngineOptions, "ConsoleListener"], BootedEngine]
    RunFront = Callable[[BootedEngine, str, socket.socket, ServerOptions, Sequence[str]], int]

_BACKLOG = 1024  # connections the system holds while the loop is busy


class ConsoleListener:
    """Prints each boot stage; a bar while it runs, if the terminal shows one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    def stage_started(self, name: str) -> None:
        """Remember the stage for its bar."""
        self._stage = name

    def progress(self, done: int, total: int) -> None:
        """Move the stage's bar; nothing where the output is no terminal."""
        if not self._console.is_terminal:
            return
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(self._stage, total=total)
            self._bar.start()
        if self._task is not None:
            self._bar.update(self._task, completed=done)

    def stage_finished(self, report: StageReport) -> None:
        """Take the bar away and print the stage's line."""
        self.close()
        self._print(report.describe())

    def note(self, text: str) -> None:
        """Print a choice made for the operator."""
        self._print(f"note     {text}")

    def close(self) -> None:
        """Take a bar away that no stage has finished; a terminal's cursor is hidden beside it."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def serve_model(engine_options: EngineOptions, server_options: ServerOptions) -> int:
    """Boot the engine, serve until told to stop, and return the exit code.

    The address is bound first: a port in use costs no boot. The HTTP front is imported
    while the weights load, which takes 0.7 s off a start on two cores.

    Raises:
        NanoserveError: The boot was refused; `main` prints it.
    """
    logging.basicConfig(
        level=server_options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    api_keys = read_api_keys(server_options.api_key_file, os.environ)
    console = Console(file=sys.stdout)
    console.print(f"nanoserve {__version__}", highlight=False)
    listener = ConsoleListener(console)
    started = time.perf_counter()
    gc.disable()  # what a boot imports stays: looking through it costs a start 0.3 s
    with (
        _bind(server_options.host, server_options.port) as listening,
        ThreadPoolExecutor(1) as background,
        closing(listener),
    ):
        boot = import_boot(listener)
        front = background.submit(import_module, "nanoserve.cli.http_front")
        booted = boot(engine_options, listener)
        run_front: RunFront = front.result().run_front
        gc.freeze()
        gc.enable()
        name = server_options.served_model_name or booted.model_name
        url = server_url(server_options.host, listening.getsockname()[1])
        for line in boot_lines(booted.info):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        seconds = time.perf_counter() - started
        console.print(f"ready in {seconds:.1f} s; {name} on {url}", highlight=False)
        curl = curl_line(url, name, is_guarded=bool(api_keys))
        console.print(curl, highlight=False, markup=False, soft_wrap=True)
        return run_front(booted, name, listening, server_options, api_keys)


def server_url(host: str, port: int) -> str:
    """Return the address for clients; an IPv6 address stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl_line(url: str, model_name: str, is_guarded: bool = False) -> str:
    """Return a command that can be pasted into another terminal.

    Args:
        url: Of the server.
        model_name: What clients call the model.
        is_guarded: Whether a key is needed; the shell has it, the log never does.
    """
    body = {"model": model_name, "prompt": "The capital of France is", "temperature": 0}
    key = ' -H "Authorization: Bearer $NANOSERVE_API_KEY"' if is_guarded else ""
    return f"curl {shlex.quote(url)}/v1/completions{key} -d {shlex.quote(json.dumps(body))}"


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family)  # create_server leaks a socket at a bad name
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:  # a name no resolver takes is a UnicodeError
        raise OptionError(_bind_problem(host, port, error)) from error


def _bind_problem(host: str, port: int, error: OSError | UnicodeError) -> str:
    """Say why an address cannot be taken, and which flag to change."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror):
        reason = os.strerror(error.errno) if error.errno else str(error)
        advice = "Stop what listens there, or choose another with --port (0 takes a free one)."
    else:
        reason = reason_of(error)
        advice = "Check --host: 127.0.0.1 is this machine alone, 0.0.0.0 every network it is on."
    return f"Cannot listen on {host}:{port}: {reason}. {advice}"


def choose_openmp_waits(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads wait awake for some 50 microseconds, unless the operator chose.

    Read when OpenMP starts. Threads that spin on starve the event loop, and each other as
    soon as anything else runs: a step then takes five times as long. Threads that sleep at
    once have to be woken for each operator of a prompt.

    Measured: Zen 4, 2 threads, SmolLM2 in bfloat16, a prompt of 128 tokens: 95 ms with threads
    that sleep at once, 87 with these, 87 with threads that spin on.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment["OMP_WAIT_POLICY"] = "passive"
        environment.setdefault("GOMP_SPINCOUNT", "2000")  # pauses; GCC's runtime alone knows it


def import_boot(listener: ConsoleListener) -> "Boot":
    """Import torch, the slowest part of a start, as a stage of its own."""
    choose_openmp_waits(os.environ)
    listener.stage_started("import")
    started = time.perf_counter()
    from nanoserve.launch.boot import boot
    from nanoserve.runner.host_heap import use_one_heap

    use_one_heap()  # before any thread: so that what loading frees is seen to be free
    listener.stage_finished(StageReport("import", time.perf_counter() - started, "torch"))
    return boot
