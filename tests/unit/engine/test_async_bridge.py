"""The engine's thread: delivery, bounds, aborts, death and shutdown."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.engine.engine_health import HealthStatus
from nanoserve.engine.interface import OutputDelta
from nanoserve.engine.output_stream import OutputStream
from nanoserve.errors import EngineStoppedError, QueueFullError
from nanoserve.sched.step import FinishReason
from tests.builders import (
    TIMEOUT_S,
    FailingRunner,
    GatedRunner,
    counter,
    expected_text,
    make_engine,
    make_limits,
    make_request,
)


@contextmanager
def running(engine: AsyncEngine) -> Iterator[AsyncEngine]:
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


async def read(stream: OutputStream) -> list[OutputDelta]:
    """Return every delta of a stream, in bounded time."""
    async with asyncio.timeout(TIMEOUT_S):
        return [delta async for delta in stream]


def text_of(deltas: list[OutputDelta], request_id: str) -> str:
    return "".join(delta.text for delta in deltas if delta.request_id == request_id)


def test_stream_carries_all_requests_of_a_call() -> None:
    """One stream ends after the last request of its call."""

    async def main(engine: AsyncEngine) -> list[OutputDelta]:
        requests = [make_request("a", "x", max_tokens=3), make_request("b", "y", max_tokens=9)]
        return await read(engine.submit(requests))

    with running(make_engine()) as engine:
        deltas = asyncio.run(main(engine))

    assert text_of(deltas, "a") == expected_text("x", 3)
    assert text_of(deltas, "b") == expected_text("y", 9)
    assert engine.num_in_flight == 0


def test_idle_engine_wakes_for_each_request() -> None:
    """A request submitted to a sleeping loop is served, again and again."""

    async def main(engine: AsyncEngine) -> list[str]:
        texts = []
        for i in range(20):
            deltas = await read(engine.submit([make_request(f"r{i}")]))
            texts.append(text_of(deltas, f"r{i}"))
        return texts

    with running(make_engine()) as engine:
        texts = asyncio.run(main(engine))

    assert texts == [expected_text("hello", 5)] * 20


def test_places_are_bounded_and_come_back() -> None:
    """The bound counts requests, refuses with numbers, and counts what it refused."""
    engine = make_engine(max_in_flight=4)
    with running(engine):
        with engine.reserve(3), pytest.raises(QueueFullError) as caught:
            engine.reserve(2)
        engine.reserve(4).release()
        engine.count_rejected(3)  # turned away before they came here

    assert (caught.value.in_flight, caught.value.limit) == (3, 4)
    assert engine.stats().num_rejected == 5
    assert engine.num_in_flight == 0


def test_a_request_counts_from_its_submission_on() -> None:
    """It waits, or runs, while the first step that has it goes on, and is not lost in between."""
    runner = GatedRunner()
    engine = make_engine(runner)

    async def main() -> tuple[int, list[OutputDelta]]:
        stream = engine.submit([make_request(max_tokens=1)])
        await asyncio.to_thread(runner.arrived.wait, TIMEOUT_S)
        gauges = engine.stats().gauges
        runner.open()
        return gauges.num_waiting + gauges.num_running, await read(stream)

    with running(engine):
        num_there, _ = asyncio.run(main())

    assert num_there == 1
    gauges = engine.stats().gauges
    assert gauges.num_waiting + gauges.num_running == 0


def test_closing_a_stream_aborts_within_a_step() -> None:
    """The step in progress ends, the next one no longer has the request."""
    runner = GatedRunner()
    engine = make_engine(runner)

    async def main() -> None:
        stream = engine.submit([make_request(max_tokens=400)])
        runner.gate.release()
        async with asyncio.timeout(TIMEOUT_S):
            await anext(stream)
        stream.close()

    with running(engine):
        asyncio.run(main())
        runner.gate.release()  # the step that may be in progress
        idle = engine.wait_until_idle(TIMEOUT_S)

    assert idle
    assert len(runner.steps) <= 2
    stats = engine.stats()
    assert stats.finished[FinishReason.ABORT] == 1
    assert stats.gauges.num_used_blocks == 0


def test_death_reaches_every_waiter() -> None:
    """Running, queued and not yet accepted requests all end with an error."""
    died = threading.Event()
    engine = make_engine(
        FailingRunner({3: RuntimeError("device lost")}), make_limits(max_num_seqs=2)
    )
    engine.on_death(died.set)

    async def main() -> list[OutputDelta]:
        return await read(engine.submit([make_request(f"r{i}", max_tokens=50) for i in range(6)]))

    with running(engine):
        deltas = asyncio.run(main())
        assert died.wait(TIMEOUT_S)
        health = engine.health()
        with pytest.raises(EngineStoppedError, match="device lost"):
            engine.reserve(1)

    ends = {d.request_id: d for d in deltas if d.finish_reason is not None}
    assert set(ends) == {f"r{i}" for i in range(6)}
    assert all(end.finish_reason is FinishReason.ERROR for end in ends.values())
    assert health.status is HealthStatus.DEAD
    assert "device lost" in health.detail
    assert engine.num_in_flight == 0
    assert not engine.is_alive


def test_death_is_told_to_who_asks_late() -> None:
    """A callback registered after the death is called at once."""
    died, late = threading.Event(), threading.Event()
    engine = make_engine(FailingRunner({0: RuntimeError("device lost")}))
    engine.on_death(died.set)

    async def main() -> None:
        await read(engine.submit([make_request()]))

    with running(engine):
        asyncio.run(main())
        assert died.wait(TIMEOUT_S)
        engine.on_death(late.set)

    assert late.is_set()


def test_drain_finishes_what_runs_and_takes_nothing_new() -> None:
    """A request in flight is completed; a new one is refused; then the thread ends."""
    runner = GatedRunner()
    engine = make_engine(runner)

    async def main() -> list[OutputDelta]:
        stream = engine.submit([make_request()])
        engine.begin_drain()
        assert engine.health().status is HealthStatus.DRAINING
        with pytest.raises(EngineStoppedError):
            engine.reserve(1)
        ending = asyncio.create_task(asyncio.to_thread(engine.shutdown, TIMEOUT_S))
        runner.open()
        deltas = await read(stream)
        await ending
        return deltas

    engine.start()
    deltas = asyncio.run(main())

    assert text_of(deltas, "a") == expected_text("hello", 5)
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert engine.health().status is HealthStatus.STOPPED
    assert not engine.is_alive


def test_shutdown_without_drain_tells_the_waiter() -> None:
    """What is cut ends with ABORT and says why."""
    runner = GatedRunner()
    engine = make_engine(runner)

    async def main() -> list[OutputDelta]:
        stream = engine.submit([make_request(max_tokens=400)])
        ending = asyncio.create_task(asyncio.to_thread(engine.shutdown))
        deltas = await read(stream)
        runner.open()
        await ending
        return deltas

    engine.start()
    deltas = asyncio.run(main())

    assert deltas[-1].finish_reason is FinishReason.ABORT
    assert "shutting down" in (deltas[-1].error or "")
    assert engine.stats().gauges.num_used_blocks == 0


def test_health_names_a_stall() -> None:
    """Work outstanding and no step for longer than allowed is a stall; a step ends it."""
    now = [0.0]
    runner = GatedRunner()
    engine = make_engine(runner, clock=counter(now), stall_after_s=60.0)

    async def main() -> list[HealthStatus]:
        stream = engine.submit([make_request(max_tokens=2)])
        seen = [engine.health().status]
        now[0] = 61.0
        seen.append(engine.health().status)
        runner.gate.release()
        async with asyncio.timeout(TIMEOUT_S):
            await anext(stream)
        seen.append(engine.health().status)
        runner.open()
        await read(stream)
        now[0] = 1000.0
        return [*seen, engine.health().status]

    with running(engine):
        seen = asyncio.run(main())

    ok, stalled = HealthStatus.OK, HealthStatus.STALLED
    assert seen == [ok, stalled, ok, ok]


def test_engine_that_was_not_started_refuses() -> None:
    """Before `start` the engine is starting, and says so."""
    engine = make_engine()

    assert engine.health().status is HealthStatus.STARTING
    with pytest.raises(EngineStoppedError, match="starting"):
        engine.reserve(1)


def test_request_that_cannot_be_queued_fails_alone() -> None:
    """The loop outlives a request that the scheduler refuses."""

    async def main(engine: AsyncEngine) -> tuple[list[OutputDelta], list[OutputDelta]]:
        bad = await read(engine.submit([make_request("bad", max_tokens=10**6)]))
        return bad, await read(engine.submit([make_request("good")]))

    with running(make_engine()) as engine:
        bad, good = asyncio.run(main(engine))

    assert [delta.finish_reason for delta in bad] == [FinishReason.ERROR]
    assert text_of(good, "good") == expected_text("hello", 5)


def test_closed_event_loop_does_not_end_the_engine() -> None:
    """Deltas for a loop that is gone are dropped; others go on."""
    runner = GatedRunner()
    engine = make_engine(runner)

    async def leave() -> None:
        engine.submit([make_request("left", max_tokens=3)])

    async def stay() -> list[OutputDelta]:
        return await read(engine.submit([make_request("stays")]))

    with running(engine):
        asyncio.run(leave())
        runner.open()
        deltas = asyncio.run(stay())
        assert engine.wait_until_idle(TIMEOUT_S)

    assert text_of(deltas, "stays") == expected_text("hello", 5)


@asynccontextmanager
async def _serving(engine: AsyncEngine) -> AsyncIterator[AsyncEngine]:
    with running(engine):
        yield engine


def test_crowd_gets_what_each_would_get_alone() -> None:
    """100 requests from many tasks, half of them aborted early, leave nothing behind."""

    async def one(engine: AsyncEngine, i: int) -> Any:
        stream = engine.submit([make_request(f"r{i}", "p" * (i % 7 + 1), max_tokens=20)])
        if i % 2:
            await anext(stream)
            stream.close()
            return None
        return text_of(await read(stream), f"r{i}")

    async def main() -> list[Any]:
        async with _serving(make_engine()) as engine, asyncio.timeout(TIMEOUT_S):
            texts = await asyncio.gather(*(one(engine, i) for i in range(100)))
            assert await asyncio.to_thread(engine.wait_until_idle, TIMEOUT_S)
            assert engine.stats().gauges.num_used_blocks == 0
            return texts

    texts = asyncio.run(main())

    assert texts[::2] == [expected_text("p" * (i % 7 + 1), 20) for i in range(0, 100, 2)]
