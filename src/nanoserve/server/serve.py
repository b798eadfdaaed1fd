"""Runs the application until a signal or the engine's death, and ends it in bounded time.

First SIGINT, SIGTERM or SIGHUP: /health is 503 and new requests are refused at once, running
answers go on for `drain_seconds`. Second: everything ends now. Both exit 0; an engine
that dies exits 1 after every waiter has been told.

A signal sent to a process group may come twice, from its sender and passed on by a parent
such as make: what comes within `ONE_SIGNAL_S` of the first counts as the first.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.server.http_protocol import BoundedHttpProtocol

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONE_SIGNAL_S = 1.0  # a parent passes one on in milliseconds, on busy cores in more
_LAST_FRAMES_S = 2  # for error frames to reach their readers once the engine has stopped
EXIT_OK = 0
EXIT_ENGINE_DIED = 1


class _QuietServer(uvicorn.Server):
    """A uvicorn server that leaves signals to `_Lifecycle`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Lifecycle:
    """Turns signals and the engine's death into an orderly end of a server."""

    def __init__(
        self,
        server: uvicorn.Server,
        engine: AsyncEngine,
        drain_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._engine = engine
        self._drain_seconds = drain_seconds
        self._clock = clock
        self._first_signal_s = 0.0
        self._ending: asyncio.Task[None] | None = None
        self.exit_code = EXIT_OK

    async def run(self, sockets: list[socket.socket]) -> int:
        """Serve until the end; return the exit code."""
        loop = asyncio.get_running_loop()
        numbers = [one for one in _SIGNALS if not _is_ignored_hangup(one)]
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)
        self._engine.on_death(lambda: loop.call_soon_threadsafe(self._on_death))
        try:
            await self._server.serve(sockets)
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            await asyncio.to_thread(self._engine.shutdown)
        return self.exit_code

    def _on_signal(self) -> None:
        now_s = self._clock()
        if self._ending is not None:
            if now_s - self._first_signal_s < ONE_SIGNAL_S:
                logger.info("A signal within %g s of the first is the same one.", ONE_SIGNAL_S)
                return
            logger.warning("Second signal: ending now.")
            self._server.should_exit = self._server.force_exit = True
            return
        self._first_signal_s = now_s
        level = logging.WARNING if self._engine.num_in_flight else logging.INFO  # somebody waits
        logger.log(
            level,
            "Draining for at most %g s. Another signal, a second later or more, ends now.",
            self._drain_seconds,
        )
        self._engine.begin_drain()
        self._ending = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """Stop the engine once it is idle or its time is up; its last words go out after."""
        await asyncio.to_thread(self._engine.shutdown, self._drain_seconds)
        self._server.should_exit = True

    def _on_death(self) -> None:
        logger.critical("The engine died; the server stops.")
        self.exit_code = EXIT_ENGINE_DIED
        self._server.should_exit = True


def _is_ignored_hangup(number: signal.Signals) -> bool:
    """Whether it is the end of a terminal that the server was started to outlive, by nohup."""
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def serve(
    app: FastAPI,
    engine: AsyncEngine,
    listening: socket.socket,
    *,
    drain_seconds: float,
    log_level: str = "warning",
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Serve and return the process's exit code. Blocks; call it in the main thread.

    Args:
        app: From `build_app`.
        engine: Started; it is stopped on the way out.
        listening: Bound and listening; closed on the way out.
        drain_seconds: How long running answers may go on after the first signal.
        log_level: uvicorn's.
        clock: In seconds; says how far apart signals are.
    """
    config = make_config(app, log_level)
    lifecycle = Lifecycle(_QuietServer(config), engine, drain_seconds, clock)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        return runner.run(lifecycle.run([listening]))


def make_config(app: FastAPI, log_level: str) -> uvicorn.Config:
    """Return uvicorn's settings: bounded headers, no websockets, a short goodbye."""
    return uvicorn.Config(
        app,
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="off",  # there is none, and a forced end would print its cancellation
        log_level=log_level,
        access_log=log_level == "debug",
        timeout_graceful_shutdown=_LAST_FRAMES_S,
        server_header=False,
    )
