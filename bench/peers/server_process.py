"""A server as a process group: started, waited for, weighed and stopped."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

_POLL_S = 0.02
_STOP_S = 20.0
_NUM_PORTS = 20  # tried, from the first on
_IDLE_SPAN_S, _IDLE_FRACTION = 0.5, 0.2  # of a core; event loops that poll stay below
_ANSWER_S = 30.0  # for one token of a short prompt
# In /proc/PID/stat after the name: user and system time, then the same of children that have
# ended, like compilers. Source: proc(5)
_USER_TIME, _NUM_TIMES = 11, 4
_BUSY_FIELDS = (1, 2, 3, 6, 7)  # of "cpu" in /proc/stat: user, nice, system, irq, softirq


def machine_cpu_s() -> float:
    """Return the processor time of everything on this machine since it started."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(int(words[index]) for index in _BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")


def free_port(first: int) -> int:
    """Return the first port from `first` on that no other server holds.

    Raises:
        OSError: Twenty are taken.
    """
    for port in range(first, first + _NUM_PORTS):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    message = f"ports {first} to {first + _NUM_PORTS - 1} are taken; choose others with --port"
    raise OSError(message)


class ServerFailedError(Exception):
    """A peer did not start, or died under a load; the message says what is known."""


class StartFailedError(ServerFailedError):
    """A peer did not start; the message is the end of its log."""


class ServerProcess:
    """One running server and all its children."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], port: int, log: Path
    ) -> None:
        self.port = port
        self._log = log
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
            StartFailedError: It ended, or did not answer in time.
        """
        while (left_s := self._started_s + timeout_s - time.perf_counter()) > 0:
            if self._process.poll() is not None:
                self.stop()  # children that outlived it
                raise StartFailedError(self.end_of_log())
            if self.is_answering(prompt, left_s):
                return time.perf_counter() - self._started_s
            time.sleep(_POLL_S)
        self.stop()
        message = f"no token within {timeout_s:g} s; its log ends:\n{self.end_of_log()}"
        raise StartFailedError(message)

    def end_of_log(self) -> str:
        """Return the last of what it printed."""
        return self._log.read_text(errors="replace")[-2000:]

    def is_answering(self, prompt: object, timeout_s: float = _ANSWER_S) -> bool:
        """Return whether a token of an answer comes in time."""
        try:
            return self._has_answered(prompt, timeout_s)
        except (OSError, HTTPException, ValueError, LookupError):
            return False

    def _has_answered(self, prompt: object, timeout_s: float) -> bool:
        with urllib.request.urlopen(f"{self.url}/v1/models", timeout=10) as answer:
            model = json.load(answer)["data"][0]["id"]
        body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return b'"choices"' in answer.read()

    def peak_rss_bytes(self) -> int:
        """Return the sum of the peaks (VmHWM) of every process of the group."""
        texts = (self._read(pid, "status") for pid in self._pids())
        return sum(
            1024 * int(text.split("VmHWM:")[1].split()[0]) for text in texts if "VmHWM:" in text
        )

    def cpu_s(self) -> float:
        """Return the processor time of every process of the group so far, ended ones too."""
        ticks = 0
        for pid in self._pids():
            fields = self._read(pid, "stat").rpartition(")")[2].split()
            ticks += sum(map(int, fields[_USER_TIME : _USER_TIME + _NUM_TIMES]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def is_idle_within(self, timeout_s: float) -> bool:
        """Wait until it computes nothing; return whether that was in time."""
        end_s = time.perf_counter() + timeout_s
        while time.perf_counter() < end_s:
            before_s = self.cpu_s()
            time.sleep(_IDLE_SPAN_S)
            if self.cpu_s() - before_s <= _IDLE_FRACTION * _IDLE_SPAN_S:
                return True
        return False

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

    def stop(self) -> None:
        """End it and its children, those too that outlive it."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        killed_s = time.perf_counter()
        while self.peak_rss_bytes() and time.perf_counter() - killed_s < _STOP_S:
            time.sleep(_POLL_S)  # its children go when the kernel gets to it

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
