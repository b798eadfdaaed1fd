"""What one call waits on: the deltas of its requests, carried into its event loop.

`OutputStream` lives in the event loop and is touched only there; the engine's thread
hands deltas over with one `call_soon_threadsafe` per event loop and step. Knows nothing
of HTTP. Who fills it is `async_bridge`.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Self

from nanoserve.engine.interface import OutputDelta


class OutputStream:
    """The deltas of one call's requests, in the order in which they happened.

    Iterate it for the deltas; it ends after the last delta of its last request. `close`
    aborts whatever has not ended.
    """

    def __init__(self, request_ids: Iterable[str], abort: Callable[[list[str]], None]) -> None:
        """Make a stream in the running event loop.

        Args:
            request_ids: The requests of the call.
            abort: Called with the ids that have not ended, when the stream is closed.
        """
        self.loop = asyncio.get_running_loop()
        self._open = set(request_ids)
        self._abort = abort
        self._deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputDelta:
        if not self._open:
            raise StopAsyncIteration
        if not self._deltas.empty():  # one that lags behind lets the others, and /health, go on
            await asyncio.sleep(0)
        delta = await self._deltas.get()
        if delta.finish_reason is not None:
            self._open.discard(delta.request_id)
        return delta

    def put(self, delta: OutputDelta) -> None:
        """Add a delta; called in the stream's event loop."""
        self._deltas.put_nowait(delta)

    def close(self) -> None:
        """Abort the requests that have not ended. Nothing more is delivered to anyone."""
        if self._open:
            self._abort(sorted(self._open))
            self._open.clear()


def deliver(items: Iterable[tuple[OutputStream, OutputDelta]]) -> None:
    """Hand deltas to their streams, from any thread, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[OutputStream, OutputDelta]]] = {}
    for stream, delta in items:
        by_loop.setdefault(stream.loop, []).append((stream, delta))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, batch)
        except RuntimeError:  # that loop is closed: nobody is left who waits
            continue


def _put_all(batch: list[tuple[OutputStream, OutputDelta]]) -> None:
    for stream, delta in batch:
        stream.put(delta)
