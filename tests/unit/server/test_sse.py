"""Frames, and noticing that the reader is gone."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nanoserve.server.sse import (
    ClientGoneError,
    EventStreamResponse,
    frame,
    unless_client_goes,
)
from tests.builders import TIMEOUT_S


class _Client:
    """An ASGI client that goes when told, and keeps what it was sent."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)


def test_frame_is_one_event() -> None:
    """Data, and an empty line."""
    assert frame('{"a":"č"}') == 'data: {"a":"č"}\n\n'.encode()


def test_work_is_returned_while_the_client_stays() -> None:
    """The result, or the exception, of the work comes through."""

    async def fail() -> None:
        raise KeyError

    async def main() -> str:
        client = _Client()
        with pytest.raises(KeyError):
            await unless_client_goes(client.receive, fail())
        return await unless_client_goes(client.receive, asyncio.sleep(0, "done"))

    assert asyncio.run(main()) == "done"


def test_work_is_cancelled_when_the_client_goes() -> None:
    """The work's own clean-up has run by the time the caller hears of it."""
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            cleaned = True

    async def main() -> None:
        client = _Client()
        client.gone.set()
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(ClientGoneError):
                await unless_client_goes(client.receive, work())

    asyncio.run(main())

    assert cleaned


async def _frames(*data: bytes) -> AsyncIterator[bytes]:
    for item in data:
        yield item


def test_stream_is_sent_and_closed() -> None:
    """Head, frames, end; and `close` once."""
    closed: list[bool] = []

    async def main() -> list[dict[str, Any]]:
        client = _Client()
        response = EventStreamResponse(_frames(b"a", b"b"), lambda: closed.append(True))
        await response({"type": "http"}, client.receive, client.send)
        return client.sent

    sent = asyncio.run(main())

    assert sent[0]["status"] == 200
    assert [message["body"] for message in sent[1:]] == [b"a", b"b", b""]
    assert [message["more_body"] for message in sent[1:]] == [True, True, False]
    assert closed == [True]


def test_stream_is_closed_when_the_client_goes() -> None:
    """A stream that nobody reads ends without an exception, and `close` is called."""
    closed: list[bool] = []

    async def endless(client: _Client) -> AsyncIterator[bytes]:
        yield b"a"
        client.gone.set()
        await asyncio.Event().wait()

    async def main() -> None:
        client = _Client()
        response = EventStreamResponse(endless(client), lambda: closed.append(True))
        async with asyncio.timeout(TIMEOUT_S):
            await response({"type": "http"}, client.receive, client.send)

    asyncio.run(main())

    assert closed == [True]
