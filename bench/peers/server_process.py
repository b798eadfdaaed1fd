"""A server as a process group: started, waited for, paused, weighed and stopped."""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

_POLL_S = 0.02
_STOP_S = 20.0
_USER_TIME = 11  # in /proc/PID/stat after the name; system time follows. Source: proc(5)
_BUSY_FIELDS = (1, 2, 3, 6, 7)  # of "cpu" in /proc/stat: user, nice, system, irq, softirq


def machine_cpu_s() -> float:
    """Return the processor time of everything on this machine since it started."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(int(words[index]) for index in _BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")


class ServerFailedError(Exception):
    """A peer did not start; the message is the end of its log."""


class ServerProcess:
    """One running server and all its children."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], port: int, log: Path
    ) -> None:
        self.port = port
        self._log = log
        self._is_paused = False
        with log.open("w") as file:
            self._started_s = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **environment},
            )

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def wait_for_token(self, prompt: object, timeout_s: float) -> float:
        """Return the seconds from the start of the process to its first token.

        Raises:
            ServerFailedError: It ended, or did not answer in time.
        """
        while time.perf_counter() - self._started_s < timeout_s:
            if self._process.poll() is not None:
                raise ServerFailedError(self._log.read_text(errors="replace")[-2000:])
            with contextlib.suppress(OSError, ValueError, LookupError):
                if self._has_answered(prompt):
                    return time.perf_counter() - self._started_s
            time.sleep(_POLL_S)
        self.stop()
        message = f"no token within {timeout_s:g} s; see {self._log}"
        raise ServerFailedError(message)

    def _has_answered(self, prompt: object) -> bool:
        with urllib.request.urlopen(f"{self.url}/v1/models", timeout=10) as answer:
            model = json.load(answer)["data"][0]["id"]
        body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return b'"choices"' in answer.read()

    def peak_rss_bytes(self) -> int:
        """Return the sum of the peaks (VmHWM) of every process of the group."""
        texts = (self._read(pid, "status") for pid in self._pids())
        return sum(1024 * int(text.split("VmHWM:")[1].split()[0]) for text in texts if text)

    def cpu_s(self) -> float:
        """Return the processor time of every process of the group so far."""
        ticks = 0
        for pid in self._pids():
            fields = self._read(pid, "stat").rpartition(")")[2].split()
            ticks += sum(map(int, fields[_USER_TIME : _USER_TIME + 2]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _pids(self) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(folder.name)) == self._process.pid:
                    found.append(int(folder.name))
        return found

    def _read(self, pid: int, name: str) -> str:
        """Return a file of a process; '' where it has ended."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/{name}").read_text()
        return ""

    def pause(self) -> None:
        """Take it off the cores."""
        if not self._is_paused:
            os.killpg(self._process.pid, signal.SIGSTOP)
            self._is_paused = True

    def resume(self) -> None:
        """Let it go on."""
        if self._is_paused:
            os.killpg(self._process.pid, signal.SIGCONT)
            self._is_paused = False

    def stop(self) -> None:
        """End it and its children."""
        self.resume()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
