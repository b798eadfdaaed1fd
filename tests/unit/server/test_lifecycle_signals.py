"""Signals by their distance in time, told by a clock of the test's."""

import asyncio
from typing import Any, cast

import pytest
import uvicorn

from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.server.serve import ONE_SIGNAL_S, Lifecycle


class _Server:
    should_exit = force_exit = False


class _Engine:
    num_drains = 0
    num_in_flight = 1

    def begin_drain(self) -> None:
        self.num_drains += 1

    def shutdown(self, timeout_s: float) -> None:
        """Be idle at once."""


def ends_at(*signals_s: float) -> tuple[bool, int]:
    """Return whether signals at these times end a server at once, and how many began a drain."""
    server, engine = _Server(), _Engine()
    clock = iter(signals_s).__next__

    async def run() -> bool:
        lifecycle: Any = Lifecycle(
            cast("uvicorn.Server", server), cast("AsyncEngine", engine), 9.0, clock
        )
        for _ in signals_s:
            lifecycle._on_signal()
        is_forced = server.force_exit
        await lifecycle._ending
        return is_forced

    return asyncio.run(run()), engine.num_drains


@pytest.mark.parametrize(
    ("later_s", "is_forced"),
    [
        ((), False),
        ((0.0,), False),
        ((0.9 * ONE_SIGNAL_S,), False),
        ((0.5 * ONE_SIGNAL_S, 0.9 * ONE_SIGNAL_S), False),
        ((ONE_SIGNAL_S,), True),
        ((0.9 * ONE_SIGNAL_S, 1.8 * ONE_SIGNAL_S), True),  # counted from the first
    ],
)
def test_signals_close_to_the_first_are_the_first(
    later_s: tuple[float, ...], is_forced: bool
) -> None:
    """They drain once; one that comes later ends the server now."""
    start_s = 1000.0

    assert ends_at(start_s, *(start_s + after_s for after_s in later_s)) == (is_forced, 1)
