"""The engine's thread, and the way into it and out of it from asyncio.

Owns the thread that steps the core, the bound on requests in flight, and the promise that
every waiter hears the end of its requests, whatever happens to the loop. The core is
touched by that thread alone; everything shared is guarded by one condition. Knows nothing
of HTTP. What a step does is in `engine_core`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanoserve.engine.engine_core import EngineCore
from nanoserve.engine.engine_health import Health, HealthStatus, judge_loop
from nanoserve.engine.interface import GenerationRequest, OutputDelta
from nanoserve.engine.output_stream import OutputStream, deliver
from nanoserve.engine.reservation import Reservation
from nanoserve.engine.stats import StatsSnapshot
from nanoserve.errors import EngineStoppedError, QueueFullError
from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.step import FinishReason

logger = logging.getLogger(__name__)

STALL_AFTER_S = 60.0  # longest silence of a loop with work before /health says so
JOIN_TIMEOUT_S = 5.0  # how long a stop waits for the step in progress


@dataclass(frozen=True, slots=True)
class _Submission:
    request: GenerationRequest
    stream: OutputStream
    submitted_s: float


class AsyncEngine:
    """An `EngineCore` in a thread of its own, for callers in any event loop."""

    def __init__(
        self,
        core: EngineCore,
        limits: EngineLimits,
        max_in_flight: int,
        clock: Callable[[], float] = time.monotonic,
        stall_after_s: float = STALL_AFTER_S,
        expects_replays: bool = False,
    ) -> None:
        """Store the parts; `start` starts the thread.

        Args:
            core: Touched by the engine's thread alone from now on.
            limits: What the core's scheduler works within.
            max_in_flight: Most requests queued and running together.
            clock: Monotonic seconds, the same as the core's.
            stall_after_s: Longest silence with work outstanding that still is healthy.
            expects_replays: Whether decode steps were to be captured, so that one which is
                not replayed is news.
        """
        self.limits = limits
        self.max_in_flight = max_in_flight
        self._core = core
        self._clock = clock
        self._stall_after_s = stall_after_s
        self._expects_replays = expects_replays
        self._thread = threading.Thread(target=self._run, name="nanoserve-engine", daemon=True)
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._inbox: list[_Submission | str] = []  # a str is the id of a request to abort
        self._taken: list[_Submission | str] = []  # out of it, and not in the snapshot yet
        self._streams: dict[str, OutputStream] = {}
        self._num_in_flight = 0
        self._num_rejected = 0
        self._status = HealthStatus.STARTING
        self._death: BaseException | None = None
        self._death_callbacks: list[Callable[[], object]] = []
        self._stop_requested = False
        self._last_progress_s = clock()
        self._snapshot = core.snapshot()

    def start(self) -> None:
        """Start the loop."""
        with self._changed:
            self._status = HealthStatus.OK
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the loop's thread runs."""
        return self._thread.is_alive()

    @property
    def num_in_flight(self) -> int:
        """Places taken: requests queued and running, and those still being prepared."""
        return self._num_in_flight

    def on_death(self, callback: Callable[[], object]) -> None:
        """Have `callback` called in the engine's thread should the loop die, or now if it has."""
        with self._changed:
            self._death_callbacks.append(callback)
            is_dead = self._death is not None
        if is_dead:
            callback()

    def stats(self) -> StatsSnapshot:
        """Return counters and gauges as of the loop's last turn."""
        with self._changed:
            incoming = [item for item in self._taken + self._inbox if isinstance(item, _Submission)]
            return self._snapshot.as_seen(self._clock(), len(incoming), self._num_rejected)

    def health(self) -> Health:
        """Say whether the loop gets on, and as planned. Takes no longer than a lock."""
        with self._changed:
            if self._death is not None:
                return Health(HealthStatus.DEAD, f"The engine loop died: {self._death!r}")
            if self._status is not HealthStatus.OK:
                return Health(self._status)
            has_work = bool(self._streams or self._inbox)
            silence_s = self._clock() - self._last_progress_s if has_work else 0.0
            window = self._snapshot.steps.window if self._expects_replays else None
        return judge_loop(silence_s, self._stall_after_s, window)

    def reserve(self, num_requests: int) -> Reservation:
        """Take places for requests about to be prepared and submitted.

        Raises:
            QueueFullError: Too many requests are in flight.
            EngineStoppedError: The engine has stopped, or takes nothing new.
        """
        with self._changed:
            if self._status is not HealthStatus.OK:
                raise EngineStoppedError(self._refusal())
            if self._num_in_flight + num_requests > self.max_in_flight:
                self._num_rejected += num_requests
                raise QueueFullError(self._num_in_flight, self.max_in_flight)
            self._num_in_flight += num_requests
        return Reservation(num_requests, self._give_back)

    def count_rejected(self, num_requests: int) -> None:
        """Count requests that the caller turned away itself, in the same number."""
        with self._changed:
            self._num_rejected += num_requests

    def submit(
        self, requests: Sequence[GenerationRequest], places: Reservation | None = None
    ) -> OutputStream:
        """Queue requests; call it in the event loop that will read the stream.

        Args:
            requests: Admitted requests with unique ids.
            places: Where the requests go, from `reserve`; None reserves now.

        Raises:
            QueueFullError: Too many requests are in flight.
            EngineStoppedError: The engine has stopped.
        """
        if places is None:
            with self.reserve(len(requests)) as own_places:
                return self.submit(requests, own_places)
        stream = OutputStream([request.request_id for request in requests], self.abort)
        with self._changed:
            if self._status not in (HealthStatus.OK, HealthStatus.DRAINING):
                raise EngineStoppedError(self._refusal())
            places.take(len(requests))
            if not self._streams:
                self._last_progress_s = self._clock()
            for request in requests:
                self._streams[request.request_id] = stream
                self._inbox.append(_Submission(request, stream, self._clock()))
            self._changed.notify_all()
        return stream

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests before the next step; ids that have ended are ignored."""
        with self._changed:
            self._inbox.extend(request_ids)
            self._changed.notify_all()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Block until nothing is in flight; False if it still is after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num_in_flight == 0, timeout_s)

    def begin_drain(self) -> None:
        """Take nothing new from now on; what is in flight goes on."""
        with self._changed:
            if self._status in (HealthStatus.OK, HealthStatus.STARTING):
                self._status = HealthStatus.DRAINING

    def shutdown(self, drain_s: float = 0.0) -> None:
        """Drain for at most `drain_s`, end what is left with an error, stop the thread.

        Blocks; returns at once where the loop has ended already. A step that does not
        end within `JOIN_TIMEOUT_S` is left to its daemon thread.
        """
        self.begin_drain()
        if self.is_alive:
            self.wait_until_idle(drain_s)
        with self._changed:
            self._stop_requested = True
            self._changed.notify_all()
        self._end_all(HealthStatus.STOPPED, FinishReason.ABORT, "The server is shutting down.")
        if self.is_alive:
            self._thread.join(JOIN_TIMEOUT_S)

    def _refusal(self) -> str:
        if self._death is not None:
            return f"The engine loop died: {self._death!r} Restart the server."
        if self._status is HealthStatus.STARTING:
            return "The engine is starting. Try again shortly."
        return "The server is shutting down. Send the request to another one."

    def _give_back(self, num_places: int) -> None:
        with self._changed:
            self._num_in_flight -= num_places
            self._changed.notify_all()

    # From here on: the engine's thread.

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._take_turn()
            self._core.abort_all()
            self._snapshot = self._core.snapshot()
        except BaseException as error:  # border: whatever it is, every waiter must hear of it
            logger.exception("The engine loop died.")
            self._die(error)
        finally:
            self._core.flush_trace()

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._inbox or self._stop_requested or self._core.has_work):
                self._changed.wait()
            return not self._stop_requested

    def _take_turn(self) -> None:
        with self._changed:
            self._taken, self._inbox = self._inbox, []
        deltas = [delta for item in self._taken if (delta := self._accept(item)) is not None]
        if deltas or not self._core.has_work:
            self._publish(deltas)
        if self._core.has_work:
            self._publish(self._core.step())

    def _accept(self, item: _Submission | str) -> OutputDelta | None:
        if isinstance(item, str):
            return self._core.abort(item)
        request_id = item.request.request_id
        try:
            self._core.add(item.request, item.submitted_s)
        except Exception as error:  # border: a request that cannot be queued fails alone
            logger.exception("Request %s could not be queued.", request_id)
            problem = f"The request could not be queued: {error}"
            return OutputDelta(request_id, "", (), FinishReason.ERROR, error=problem)
        return None

    def _publish(self, deltas: Sequence[OutputDelta]) -> None:
        """Show what a turn did: numbers first, then places, then the deltas."""
        snapshot = self._core.snapshot()
        ended = [delta.request_id for delta in deltas if delta.finish_reason is not None]
        with self._changed:
            self._snapshot, self._taken = snapshot, []
            self._last_progress_s = self._clock()
            items = [
                (self._streams[delta.request_id], delta)
                for delta in deltas
                if delta.request_id in self._streams
            ]
            self._drop_streams(ended)
        deliver(items)

    def _drop_streams(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if self._streams.pop(request_id, None) is not None:
                self._num_in_flight -= 1
        if request_ids:
            self._changed.notify_all()

    def _die(self, error: BaseException) -> None:
        with self._changed:
            self._death, callbacks = error, list(self._death_callbacks)
        self._end_all(HealthStatus.DEAD, FinishReason.ERROR, f"The engine loop died: {error!r}")
        for callback in callbacks:
            callback()

    def _end_all(self, status: HealthStatus, reason: FinishReason, problem: str) -> None:
        """Tell every waiter the end; from either thread, and the first one wins."""
        with self._changed:
            if self._status is not HealthStatus.DEAD:
                self._status = status
            items = [
                (stream, OutputDelta(request_id, "", (), reason, error=problem))
                for request_id, stream in self._streams.items()
            ]
            self._inbox, self._taken = [], []
            self._drop_streams(list(self._streams))
        deliver(items)
