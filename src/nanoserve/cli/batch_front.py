"""The HTTP application over a booted engine, called in this process: one call per line.

A line goes through the very handlers that a client's request would, so its answer is the
one it would get over HTTP, errors included. There is no socket.
"""

import asyncio
import contextlib
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx

from nanoserve import __version__
from nanoserve.engine.async_bridge import AsyncEngine
from nanoserve.errors import EngineStoppedError
from nanoserve.launch.batch_answers import AnswerFile
from nanoserve.launch.batch_file import BatchLine
from nanoserve.sched.sampling_params import MAX_N
from nanoserve.server.app import build_app
from nanoserve.server.error_response import error_body, error_status
from nanoserve.server.serving_context import ServingContext
from nanoserve.text.template_process import rendered_apart

if TYPE_CHECKING:
    from nanoserve.launch.boot import BootedEngine

LINES_PER_PLACE = 2  # lines in flight for each request that may run: the queue is never empty
_HEADERS = {"content-type": "application/json"}


def answer_batch(
    booted: "BootedEngine",
    name: str,
    lines: Iterator[BatchLine],
    answers: AnswerFile,
    advance: Callable[[], None],
) -> Counter[int]:
    """Answer every line, many at once; return how many had which status.

    Args:
        booted: A loaded model.
        name: What the lines may call it.
        lines: Read as places become free.
        answers: Where each answer goes as soon as it is complete.
        advance: Called for each answer.

    Raises:
        EngineStoppedError: The engine died; lines in flight have no answer.
        BatchWriteError: The answers cannot be written.
    """
    num_in_flight = LINES_PER_PLACE * booted.limits.max_num_seqs
    engine = AsyncEngine(booted.core, booted.limits, max_in_flight=num_in_flight * MAX_N)
    with contextlib.ExitStack() as stack:
        context = ServingContext(
            engine,
            booted.tokenizer,
            stack.enter_context(rendered_apart(booted.chat_template)),
            name,
            __version__,
            grammar_compiler=booted.grammar_compiler,
        )
        stack.callback(context.close)
        engine.start()
        try:
            batch = _Batch(context, lines, answers, advance)
            return asyncio.run(batch.answer_all(num_in_flight))
        finally:
            engine.shutdown()


class _Batch:
    """The lines of one run on their way through the application."""

    def __init__(
        self,
        context: ServingContext,
        lines: Iterator[BatchLine],
        answers: AnswerFile,
        advance: Callable[[], None],
    ) -> None:
        self._context = context
        self._lines = lines
        self._answers = answers
        self._advance = advance
        self._statuses: Counter[int] = Counter()

    async def answer_all(self, num_in_flight: int) -> Counter[int]:
        transport = httpx.ASGITransport(build_app(self._context), raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://batch", headers=_HEADERS, timeout=None
        ) as client:
            await asyncio.gather(*(self._work(client) for _ in range(num_in_flight)))
        return self._statuses

    async def _work(self, client: httpx.AsyncClient) -> None:
        for line in self._lines:
            status, body = await _answer(client, line)
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                self._check_engine()
            self._answers.append(line.custom_id, uuid.uuid4().hex, status, body)
            self._statuses[status] += 1
            self._advance()

    def _check_engine(self) -> None:
        """An answer that only says that the engine is gone is none: the line stays open."""
        health = self._context.engine.health()
        if not health.is_ok:
            message = f"{health.detail} Run the same command again to go on."
            raise EngineStoppedError(message)


async def _answer(client: httpx.AsyncClient, line: BatchLine) -> tuple[int, object]:
    if line.refusal is not None:
        return error_status(line.refusal), error_body(line.refusal)
    response = await client.post(line.url, content=json.dumps(line.body).encode())
    return response.status_code, response.json()
