"""One streamed answer over a socket of its own: which bytes came, and when.

A client on the cores of the server it measures must cost next to nothing, so while an
answer runs only the time of each piece of it is noted; `sse_events` reads it afterwards.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from nanoserve.bench.server_failures import connection_failure

# With the start of its line, which no JSON holds: an answer may have [DONE] in its text.
_DONE = (b"\ndata: [DONE]", b"\ndata:[DONE]")
_TAIL_BYTES = 32  # holds [DONE] and the end of a chunked body behind it


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where requests go.

    Attributes:
        host: Name or address.
        port: TCP port.
        is_tls: Whether it is https.
        path: Before `/v1`; '' or like `/api`.
    """

    host: str
    port: int
    is_tls: bool
    path: str


@dataclass(slots=True)
class RawAnswer:
    """What came back.

    Attributes:
        sent_s: `perf_counter` before the connection was made.
        pieces: Of the HTTP response, with their times.
        problem: Why there is no more; None where it ended by itself.
    """

    sent_s: float
    pieces: list[tuple[float, bytes]]
    problem: str | None = None


def server_address(base_url: str) -> ServerAddress:
    """Take a checked base URL apart."""
    parts = urlsplit(base_url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    return ServerAddress(parts.hostname or "", port, is_tls, parts.path.rstrip("/"))


def request_bytes(address: ServerAddress, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """Return a POST with a JSON body; the server is asked to close the connection after it."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    fields = {
        "Host": f"{host}:{address.port}",
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Connection": "close",
        "Content-Length": str(len(body)),
        **headers,
    }
    lines = [f"POST {address.path}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def post_stream(
    address: ServerAddress, request: bytes, timeout_s: float, until: asyncio.Event | None = None
) -> RawAnswer:
    """Send a request and collect its answer; what goes wrong is in the answer.

    Args:
        address: Of the server.
        request: Whole, from `request_bytes`.
        timeout_s: After this the answer is cut, and says so.
        until: Set when the answer is no longer wanted; it is cut without a problem.
    """
    answer = RawAnswer(time.perf_counter(), [])
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    context = ssl.create_default_context() if address.is_tls else None
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: _Collector(request, answer, ended), address.host, address.port, ssl=context
            )
            try:
                await _first_of(ended, until)
            finally:
                transport.abort()
    except TimeoutError:
        answer.problem = f"no end of the answer within {timeout_s:g} s"
    except OSError as error:
        answer.problem = f"no connection: {connection_failure(error).reason}"
    return answer


async def _first_of(ended: asyncio.Future[None], until: asyncio.Event | None) -> None:
    if until is None:
        await ended
        return
    waiting = asyncio.ensure_future(until.wait())
    try:
        await asyncio.wait((ended, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class _Collector(asyncio.Protocol):
    """Writes a request and notes what comes back."""

    def __init__(self, request: bytes, answer: RawAnswer, ended: "asyncio.Future[None]") -> None:
        self._request = request
        self._answer = answer
        self._ended = ended
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer.pieces.append((time.perf_counter(), data))
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if any(done in self._tail for done in _DONE):
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and not self._ended.done():
            self._answer.problem = f"connection lost: {connection_failure(error).reason}"
        self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
