"""A server process of this checkout, on a port of the system's choice."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

BOOT_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0
_POLL_S = 0.2


@contextmanager
def served(model: str | Path, flags: Sequence[str], log_path: Path) -> Iterator[str]:
    """Serve a model, and yield the server's address.

    Args:
        model: What `nanoserve serve` takes.
        flags: Of `nanoserve serve`.
        log_path: Gets what it prints.

    Raises:
        RuntimeError: It did not come up, or it did not stop with exit code 0.
    """
    command = [Path(sys.executable).with_name("nanoserve"), "serve", model, "--port", "0", *flags]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    with log_path.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield _wait_until_ready(process, log_path)
    finally:
        code = _stop(process)
    if code != 0:
        message = f"the server ended with code {code}; see {log_path}"
        raise RuntimeError(message)


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Ask the server to end, make it, and return its exit code."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline = time.monotonic() + BOOT_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        ready = re.search(r"^ready in .* on (http://\S+)$", log_path.read_text(), re.MULTILINE)
        if ready:
            return ready[1]
        time.sleep(_POLL_S)
    message = f"the server did not come up; see {log_path}"
    raise RuntimeError(message)
