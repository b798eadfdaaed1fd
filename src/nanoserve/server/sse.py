"""Server-sent events: frames, and a response that notices when its reader is gone.

Knows nothing of what the frames hold.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")

DONE_FRAME = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold frames back
]


class ClientGoneError(Exception):
    """The client closed its connection; nobody reads an answer."""


def frame(json_text: str) -> bytes:
    """Return one event. `json_text` has no line break, as compact JSON has none."""
    return f"data: {json_text}\n\n".encode()


async def unless_client_goes(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it as soon as the client is gone.

    Args:
        receive: The ASGI channel of a request whose body has been read.
        work: What the client waits for.

    Raises:
        ClientGoneError: The client went first.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            message = "the client closed its connection before the answer was complete"
            raise ClientGoneError(message)
        return task.result()
    finally:
        for unfinished in (task, watch):
            unfinished.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


class EventStreamResponse(Response):
    """A response that sends frames until they end or the client goes."""

    def __init__(self, frames: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        """Store the frames.

        Args:
            frames: Complete events.
            close: Called once at the end, whichever way it came, started or not.
        """
        super().__init__()
        self._frames = frames
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await unless_client_goes(receive, self._send_all(send))
        except (ClientGoneError, OSError, asyncio.CancelledError):
            return  # nobody is left to tell, or a server that ends now will not
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async for data in self._frames:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
