"""The deltas of one call, in its event loop."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest

from nanoserve.engine.interface import OutputDelta
from nanoserve.engine.output_stream import OutputStream, deliver
from nanoserve.sched.step import FinishReason
from tests.builders import TIMEOUT_S


def test_stream_ends_after_the_last_request() -> None:
    """It goes on while any of its requests does."""

    async def main() -> list[str]:
        stream = OutputStream(["a", "b"], lambda _: None)
        ends = [OutputDelta(name, name, (1,), FinishReason.LENGTH) for name in ("b", "a")]
        deliver([(stream, OutputDelta("a", "x", (1,))), *((stream, end) for end in ends)])
        async with asyncio.timeout(TIMEOUT_S):
            return [delta.text async for delta in stream]

    assert asyncio.run(main()) == ["x", "b", "a"]


def test_closing_aborts_only_what_has_not_ended() -> None:
    """Requests that ended are not aborted, and a second close does nothing."""
    aborted: list[list[str]] = []

    async def main() -> None:
        stream = OutputStream(["a", "b"], aborted.append)
        stream.put(OutputDelta("a", "", (), FinishReason.STOP))
        await anext(stream)
        stream.close()
        stream.close()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(main())

    assert aborted == [["b"]]


class _CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often another thread wakes it."""

    num_wakes = 0

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.num_wakes += 1
        return super().call_soon_threadsafe(callback, *args, context=context)


def test_each_event_loop_is_woken_once() -> None:
    """A step's deltas for one loop arrive in one callback, in order."""

    async def main(loop: _CountingLoop) -> tuple[list[str], int]:
        streams = [OutputStream([name], lambda _: None) for name in "abc"]
        before = loop.num_wakes
        deliver([(stream, OutputDelta("x", "t", ())) for stream in streams])
        num_wakes = loop.num_wakes - before
        return [(await anext(stream)).text for stream in streams], num_wakes

    loop = _CountingLoop()
    try:
        result = loop.run_until_complete(main(loop))
    finally:
        loop.close()

    assert result == (["t"] * 3, 1)
