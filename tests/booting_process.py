"""`nanoserve serve` with a boot that stalls under its bar, beside a thread that writes a file.

Run as `python -m tests.booting_process FOLDER`; says `stalled` when it does.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from nanoserve.cli import serve
from nanoserve.cli.command_run import run_command
from nanoserve.cli.serve import ConsoleListener
from nanoserve.options import EngineOptions, ServerOptions
from nanoserve.weights.cached_files import CachedFiles


def stalling_boot(folder: Path) -> object:
    """Return a boot that writes half a file into `folder` and then waits for ever."""

    def boot(options: EngineOptions, listener: ConsoleListener) -> None:
        is_open = threading.Event()

        def fill(file: BinaryIO) -> None:
            file.write(b"half")
            file.flush()
            is_open.set()
            threading.Event().wait()

        files = CachedFiles(folder, 100, spared_bytes=0)
        threading.Thread(target=lambda: files.write("one", 8, fill), daemon=True).start()
        # Whichever thread the system gives a signal to, and whenever it comes: it wakes this one.
        asleep, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken)
        listener.stage_started("weights")
        listener.progress(1, 2)
        is_open.wait()
        os.write(sys.stdout.fileno(), b"stalled\n")
        while True:
            os.read(asleep, 1)

    return boot


def main() -> None:
    folder = Path(sys.argv[1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(serve, "import_boot", lambda listener: stalling_boot(folder))
        options = ServerOptions(port=0)
        run_command(lambda: serve.serve_model(EngineOptions(), options))


if __name__ == "__main__":
    main()
