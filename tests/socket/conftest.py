"""A real server on a port of the system's choice, in a thread."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn

from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.server.app import build_app
from nanoserve.server.serve import make_config
from tests.builders import TIMEOUT_S, make_context, make_engine


class _ThreadServer(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@dataclass(frozen=True)
class Served:
    """A running server.

    Attributes:
        engine: Behind it.
        port: On 127.0.0.1.
        http: A client with its address.
    """

    engine: AsyncEngine
    port: int
    http: httpx.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the body of a call that is served."""
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = json.loads(response.text, parse_constant=pytest.fail)
        return answer

    def stream(self, path: str, **body: Any) -> list[Any]:
        """Return the data of every frame of a stream; '[DONE]' as text."""
        with self.http.stream("POST", path, json=body | {"stream": True}) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            frames = "".join(response.iter_text()).split("\n\n")
        assert frames.pop() == ""
        data = [frame.removeprefix("data: ") for frame in frames]
        return [item if item == "[DONE]" else json.loads(item) for item in data]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)


@contextmanager
def serving(engine: AsyncEngine, api_keys: Sequence[str] = (), **context: Any) -> Iterator[Served]:
    """Serve `engine` until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    port = listener.getsockname()[1]
    app = build_app(make_context(engine, **context), api_keys)
    config = make_config(app, "critical")
    config.timeout_keep_alive = int(TIMEOUT_S)  # however long a test is kept from its next call
    server = _ThreadServer(config)
    engine.start()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        assert server.listening.wait(TIMEOUT_S)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S) as client:
            yield Served(engine, port, client)
    finally:
        engine.shutdown()
        server.should_exit = True
        thread.join(TIMEOUT_S)


@pytest.fixture
def serve_in_thread() -> Iterator[Callable[..., Served]]:
    """Return a function that serves an engine until the test ends."""
    with ExitStack() as stack:

        def start(engine: AsyncEngine | None = None, **context: Any) -> Served:
            return stack.enter_context(serving(engine or make_engine(), **context))

        yield start


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Yield a default server, shared by the tests of a module."""
    with serving(make_engine()) as shared:
        yield shared
