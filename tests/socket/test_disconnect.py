"""Clients that vanish: their requests end and their blocks are free."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.sched.step import FinishReason
from tests.builders import TIMEOUT_S, GatedRunner, make_engine, make_limits, wait_for
from tests.socket.conftest import Served

Serve = Callable[..., Served]
LONG = {"prompt": "hello", "max_tokens": 450, "ignore_eos": True}


def post(connection: socket.socket, body: dict[str, Any]) -> None:
    """Send a completion call on a raw socket."""
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)


def read_until(connection: socket.socket, marker: bytes, count: int) -> None:
    data = b""
    while data.count(marker) < count:
        part = connection.recv(4096)
        assert part, data
        data += part


def vanish(connection: socket.socket, reset: bool) -> None:
    """Close a connection: politely, or with a reset."""
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class AbortSemaphore(threading.Semaphore):
    """Is released whenever an engine hears that a request's client has gone."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(0)
        self._abort = engine.abort
        engine.abort = self._hear  # type: ignore[method-assign]

    def _hear(self, request_ids: Sequence[str]) -> None:
        self._abort(request_ids)
        self.release()


def is_free_after(num_steps: int, served: Served, runner: GatedRunner) -> bool:
    """Let so many steps through; return whether nothing is in flight then."""
    runner.gate.release(num_steps)
    return served.engine.wait_until_idle(TIMEOUT_S)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("is_stream", [True, False])
def test_vanished_client_frees_its_blocks(
    serve_in_thread: Serve, is_stream: bool, reset: bool
) -> None:
    """Stream or unary, closed or reset: at most three more steps, then all is free."""
    runner = GatedRunner()
    served = serve_in_thread(make_engine(runner))
    aborts = AbortSemaphore(served.engine)
    connection = served.connect()
    post(connection, LONG | {"stream": is_stream})
    for _ in range(4):
        runner.gate.release()
    if is_stream:
        read_until(connection, b"data: ", 2)
    else:
        wait_for(served.engine, lambda: served.engine.stats().generation_tokens >= 2)

    vanish(connection, reset)

    assert aborts.acquire(timeout=TIMEOUT_S)
    assert is_free_after(3, served, runner)
    stats = served.engine.stats()
    assert stats.finished[FinishReason.ABORT] == 1
    assert stats.gauges.num_used_blocks == 0


def test_queued_request_of_a_vanished_client_never_runs(serve_in_thread: Serve) -> None:
    """A request that waits for a place is noticed and dropped as well."""
    runner = GatedRunner()
    served = serve_in_thread(make_engine(runner, make_limits(max_num_seqs=1)))
    aborts = AbortSemaphore(served.engine)
    first, second = served.connect(), served.connect()
    post(first, LONG | {"stream": True})
    runner.gate.release()
    read_until(first, b"data: ", 1)
    post(second, LONG | {"prompt": "queued"})
    wait_for(served.engine, lambda: served.engine.num_in_flight == 2)

    vanish(second, reset=False)
    assert aborts.acquire(timeout=TIMEOUT_S)
    vanish(first, reset=False)

    assert aborts.acquire(timeout=TIMEOUT_S)
    assert is_free_after(3, served, runner)
    scheduled = {part.token_ids for step in runner.steps for part in step.scheduled}
    assert tuple(b"queued") not in scheduled


def test_200_vanishing_clients_leave_nothing(serve_in_thread: Serve) -> None:
    """After a crowd of clients that give up, no block is used and the server answers."""
    served = serve_in_thread()
    for i in range(200):
        connection = served.connect()
        post(connection, LONG | {"stream": i % 2 == 0})
        if i % 4 == 0:
            read_until(connection, b"data: ", 1)
        vanish(connection, reset=i % 3 == 0)

    def is_empty() -> bool:
        gauges = served.engine.stats().gauges
        return (gauges.num_used_blocks, gauges.num_waiting) == (0, 0)

    assert served.http.post("/v1/completions", json={"prompt": "hi"}).status_code == 200
    # Not at the first idle moment: the last of the crowd may still be on their way in.
    wait_for(served.engine, lambda: served.engine.num_in_flight == 0 and is_empty())


def test_client_that_leaves_inside_its_body_is_no_fault(
    serve_in_thread: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a body and then nothing takes no place and logs no exception."""
    served = serve_in_thread()
    connection = served.connect()
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
    vanish(connection, reset=False)

    assert served.http.post("/v1/completions", json={"prompt": "hi"}).status_code == 200
    assert served.engine.num_in_flight == 0
    assert not [record for record in caplog.records if record.exc_info]
