"""Send a load and collect its answers: a closed loop, an open one, or streams with intruders.

Raw sockets on one event loop; answers are read once the load is over, or when too many bytes
are held: reading one costs a millisecond in which no other's bytes are noted. What fails is a
record with its error, never an exception.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoserve.bench.http_stream import RawAnswer, ServerAddress, post_stream, request_bytes
from nanoserve.bench.load_plan import PlannedRequest
from nanoserve.bench.request_record import RequestRecord, read_record

PATH = "/v1/completions"
_FAILURE_PAUSE_S = 0.2  # a stream whose server refuses does not hammer it
_MAX_UNREAD_BYTES = 64 * 2**20
_AFTER_LAST_S = 2.0  # an interference run goes on this long after its last intruder was answered


@dataclass(frozen=True, slots=True)
class Target:
    """Who is asked, and how.

    Attributes:
        address: Of the server.
        headers: With the key, if there is one.
        fields: Of every request's body beside prompt and lengths.
        length_fields: Those that get the number of output tokens.
        timeout_s: Of one request.
    """

    address: ServerAddress
    headers: dict[str, str]
    fields: Mapping[str, Any]
    length_fields: tuple[str, ...]
    timeout_s: float

    def encode(self, planned: PlannedRequest) -> bytes:
        """Return the whole HTTP request."""
        body = {
            **self.fields,
            "prompt": planned.prompt,
            **dict.fromkeys(self.length_fields, planned.output_tokens),
        }
        return request_bytes(self.address, PATH, self.headers, json.dumps(body).encode())

    async def send(self, planned: PlannedRequest, until: asyncio.Event | None = None) -> RawAnswer:
        """Send one request and wait for its answer."""
        return await post_stream(self.address, self.encode(planned), self.timeout_s, until)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load came to.

    Attributes:
        records: In the order of their ends.
        seconds: From the first request to the last byte.
        client_cpu_s: Processor time this process took while it ran.
    """

    records: tuple[RequestRecord, ...]
    seconds: float
    client_cpu_s: float


class _Run:
    """Collects the records of one load."""

    def __init__(self, target: Target, on_end: Callable[[], None]) -> None:
        self._target = target
        self._on_end = on_end
        self._records: list[RequestRecord] = []
        self._unread: list[tuple[PlannedRequest, RawAnswer, bool]] = []
        self._unread_bytes = 0
        self._started_cpu_s = time.process_time()
        self.started_s = time.perf_counter()

    async def one(self, planned: PlannedRequest, until: asyncio.Event | None = None) -> bool:
        """Send a request when it is due; whether anything was answered."""
        if planned.send_at_s is not None:
            await asyncio.sleep(self.started_s + planned.send_at_s - time.perf_counter())
        answer = await self._target.send(planned, until)
        self._unread.append((planned, answer, until is not None and until.is_set()))
        self._unread_bytes += sum(len(piece) for _, piece in answer.pieces)
        if self._unread_bytes > _MAX_UNREAD_BYTES:
            self._read_all()
        self._on_end()
        return answer.problem is None and bool(answer.pieces)

    def _read_all(self) -> None:
        for planned, answer, is_cut in self._unread:
            self._records.append(read_record(planned, answer, self.started_s, is_cut=is_cut))
        self._unread, self._unread_bytes = [], 0

    def result(self) -> LoadResult:
        """Read what is left, and return what there is."""
        cpu_s = time.process_time() - self._started_cpu_s
        self._read_all()
        end_s = max((record.end_s for record in self._records), default=0.0)
        return LoadResult(tuple(self._records), end_s, cpu_s)


async def run_closed(
    target: Target, requests: Iterable[PlannedRequest], num_streams: int, on_end: Callable[[], None]
) -> LoadResult:
    """Keep `num_streams` requests in flight until all are answered."""
    run = _Run(target, on_end)
    waiting = iter(requests)

    async def stream() -> None:
        for planned in waiting:
            await run.one(planned)

    await asyncio.gather(*(stream() for _ in range(num_streams)))
    return run.result()


async def run_open(
    target: Target, requests: Sequence[PlannedRequest], on_end: Callable[[], None]
) -> LoadResult:
    """Send each request when it is due, however many are in flight."""
    run = _Run(target, on_end)
    await asyncio.gather(*(run.one(planned) for planned in requests))
    return run.result()


async def run_interference(
    target: Target,
    streams: Iterator[PlannedRequest],
    num_streams: int,
    intruders: Sequence[PlannedRequest],
    on_end: Callable[[], None],
) -> LoadResult:
    """Run streams without end, send the intruders when they are due, then cut the streams."""
    intruding = _Run(target, on_end)
    streaming = _Run(target, lambda: None)
    streaming.started_s = intruding.started_s
    is_over = asyncio.Event()

    async def stream() -> None:
        while not is_over.is_set():
            if not await streaming.one(next(streams), is_over):
                await asyncio.sleep(_FAILURE_PAUSE_S)

    running = [asyncio.ensure_future(stream()) for _ in range(num_streams)]
    await asyncio.gather(*(intruding.one(planned) for planned in intruders))
    await asyncio.sleep(_AFTER_LAST_S)
    is_over.set()
    await asyncio.gather(*running)
    result = intruding.result()
    both = (*streaming.result().records, *result.records)
    return LoadResult(both, max(record.end_s for record in both), result.client_cpu_s)
