"""`nanoserve serve`: boot with a line per stage, then the HTTP server."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nanoserve import __version__
from nanoserve.options import EngineOptions, ServerOptions
from nanoserve.plan.boot_report import StageReport


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
        """Move the stage's bar."""
        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(self._stage, total=total)
            self._bar.start()
        if self._task is not None:
            self._bar.update(self._task, completed=done)

    def stage_finished(self, report: StageReport) -> None:
        """Take the bar away and print the stage's line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._print(report.describe())

    def note(self, text: str) -> None:
        """Print a choice made for the operator."""
        self._print(f"note     {text}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def serve_model(engine_options: EngineOptions, server_options: ServerOptions) -> int:
    """Boot the engine, serve until told to stop, and return the exit code.

    Raises:
        NanoserveError: The boot was refused; `main` prints it.
    """
    started = time.perf_counter()
    console = Console(file=sys.stdout)
    console.print(f"nanoserve {__version__}", highlight=False)
    listener = ConsoleListener(console)
    listener.stage_started("import")
    from nanoserve.launch.boot import boot

    listener.stage_finished(StageReport("import", time.perf_counter() - started, "torch"))
    booted = boot(engine_options, listener)
    return 0 if booted else 1
