"""The deltas of one call, in its event loop."""

import asyncio
from collections.abc import Callable
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


def test_a_stream_that_lags_behind_gives_way() -> None:
    """Between two deltas that wait already, everybody else in the loop has a turn."""

    async def main() -> int:
        stream, turns = OutputStream(["a"], lambda _: None), 0

        async def neighbour() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        for _ in range(50):
            stream.put(OutputDelta("a", "x", (1,)))
        stream.put(OutputDelta("a", "", (), FinishReason.STOP))
        task = asyncio.create_task(neighbour())
        assert len([delta async for delta in stream]) == 51
        task.cancel()
        return turns

    assert asyncio.run(main()) >= 49


def test_each_event_loop_is_woken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's deltas for one loop arrive in one callback, in order."""
    wakes: list[object] = []

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(callback: Callable[..., object], *args: Any) -> asyncio.Handle:
            wakes.append(callback)
            return wake(callback, *args)

        streams = [OutputStream([name], lambda _: None) for name in "abc"]
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", counted)
            deliver([(stream, OutputDelta("x", "t", ())) for stream in streams])
        return [(await anext(stream)).text for stream in streams]

    assert asyncio.run(main()) == ["t"] * 3
    assert len(wakes) == 1
