"""`TemplateProcess`: a chat template that is rendered in a process which can be ended.

`ChatTemplate` bounds what a template does by its steps, not what one step costs: a filter may
build a huge value, an expression may take minutes, and a thread cannot be stopped. So
clients' messages are rendered in another process, whose memory and whose time for each
rendering are limited by the system. One that passes a limit is replaced, and costs its own
request alone.

```
parent   -> the template, once; then a line of JSON for each rendering
worker   <- a line when it is ready; then one for each rendering: {"text"} or {"refused"}
```
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from nanoserve.errors import EngineError, InvalidRequestError
from nanoserve.text.chat_template import ChatTemplate

MAX_RENDER_CPU_S = 1.0  # an ordinary rendering takes a thousandth
MAX_RENDER_BYTES = 2**30  # of address space; the worker starts with a tenth
_MAX_WAIT_S = 60.0  # on a machine where it has to wait for a core: no fault of the messages
_READ_BYTES = 2**16
_COMMAND = (sys.executable, "-P", "-m", "nanoserve.text.template_process")
_TOO_COSTLY = (
    "The chat template takes too long, or too much memory, to render these messages. "
    "Send fewer or shorter ones."
)


@contextmanager
def rendered_apart(template: ChatTemplate | None) -> Iterator["TemplateProcess | None"]:
    """Yield a process for `template` that ends with the block; None where there is none."""
    if template is None:
        yield None
        return
    with closing(TemplateProcess(template)) as process:
        yield process


class TemplateProcess:
    """Renders as its template does, one conversation at a time. Close it when done.

    Starting a worker takes a few tenths of a second, which pass beside the caller's own work:
    the first rendering waits for what is left of them.
    """

    def __init__(self, template: ChatTemplate) -> None:
        """Start the worker."""
        self._template = template
        self._rendering = threading.Lock()
        self._worker = _Worker(template)

    @property
    def source(self) -> str:
        """The template itself."""
        return self._template.source

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """Return the prompt text; arguments are those of `ChatTemplate.render`, as JSON values.

        Blocks while another conversation is rendered, and for a bounded time.

        Raises:
            InvalidRequestError: The template refuses the messages, or passes a bound.
            EngineError: No worker can be started, or it got no time to answer.
        """
        call = json.dumps({"messages": messages, **variables})
        with self._rendering:
            answer = self._ask(call)
        if answer is None:
            raise InvalidRequestError(_TOO_COSTLY, "messages")
        if "refused" in answer:
            raise InvalidRequestError(answer["refused"], "messages")
        return answer["text"]

    def close(self) -> None:
        """End the worker."""
        self._worker.end()

    def _ask(self, call: str) -> dict[str, str] | None:
        """Return the worker's answer; None if it had to be replaced."""
        if self._worker.has_ended:  # between two renderings: somebody else's doing
            self._replace_worker()
        self._worker.wait_until_ready()
        try:
            answer = self._worker.ask(call)
        except TimeoutError as error:
            self._replace_worker()
            message = f"This machine took more than {_MAX_WAIT_S:g} s to render a chat template."
            raise EngineError(message) from error
        if answer is None:
            self._replace_worker()
        return answer

    def _replace_worker(self) -> None:
        self._worker.end()
        self._worker = _Worker(self._template)


class _Worker:
    """One worker process, from the parent's side."""

    def __init__(self, template: ChatTemplate) -> None:
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # a signal to the server's group is the server's, which ends this one
        )
        self._is_ready = False
        self._send(json.dumps(template.arguments))

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_until_ready(self) -> None:
        """Wait for the process to have compiled its template.

        Raises:
            EngineError: It did not come so far.
        """
        with suppress(TimeoutError):
            self._is_ready = self._is_ready or self._receive() is not None
        if not self._is_ready:
            self.end()
            message = "The process that renders chat templates could not be started."
            raise EngineError(message)

    def ask(self, call: str) -> dict[str, str] | None:
        """Return what it says to `call`; None if it ended, which is what its limits do.

        Raises:
            TimeoutError: It says nothing.
        """
        self._send(call)
        line = self._receive()
        return None if line is None else json.loads(line)

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what it had not read any more is written again
                    pipe.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None, "the worker has a pipe"  # noqa: S101
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it has ended: what is received next says so
            return

    def _receive(self) -> bytes | None:
        """Return the next line; None if there is none any more.

        Raises:
            TimeoutError: There is none in time.
        """
        assert self._process.stdout is not None, "the worker has a pipe"  # noqa: S101
        pipe, deadline_s = self._process.stdout.fileno(), time.monotonic() + _MAX_WAIT_S
        readable = select.poll()  # `select` takes no pipe beyond the 1,024th open file
        readable.register(pipe, select.POLLIN)
        pieces: list[bytes] = []
        while not pieces or not pieces[-1].endswith(b"\n"):  # each line answers one that was sent
            left_s = max(0.0, deadline_s - time.monotonic())
            if not readable.poll(1000 * left_s):
                raise TimeoutError
            piece = os.read(pipe, _READ_BYTES)
            if not piece:
                return None
            pieces.append(piece)
        return b"".join(pieces)


def main() -> None:
    """Render what comes in on standard input until it ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_RENDER_BYTES, MAX_RENDER_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    template = ChatTemplate(**json.loads(sys.stdin.buffer.readline()))
    _answer({})
    while line := sys.stdin.buffer.readline():
        signal.setitimer(signal.ITIMER_PROF, MAX_RENDER_CPU_S)  # its signal ends the process
        try:
            answer = {"text": template.render(**json.loads(line))}
        except InvalidRequestError as error:
            answer = {"refused": str(error)}
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _answer(answer)


def _answer(answer: dict[str, str]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
