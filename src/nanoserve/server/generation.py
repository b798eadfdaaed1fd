"""One generation call from reserved place to last frame; both endpoints go through here.

Owns the order: reserve, prepare off the loop, submit, wait for the first delta, and only
then a status line. Whatever way a call ends, its requests are aborted if they still run.
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from nanoserve.engine.interface import OutputDelta
from nanoserve.errors import NanoserveError
from nanoserve.server.answer import Answer, Piece
from nanoserve.server.auth import salt_of
from nanoserve.server.convert import check_num_choices
from nanoserve.server.error_response import error_body, strict_json
from nanoserve.server.generation_call import AnswerFormat, GenerationCall
from nanoserve.server.prepared_call import PreparedCall, prepare_call
from nanoserve.server.prompt_queue import QueuedCall, QueuedStream
from nanoserve.server.protocol import StreamOptions
from nanoserve.server.serving_context import ServingContext
from nanoserve.server.sse import (
    DONE_FRAME,
    EventStreamResponse,
    frame,
    unless_client_goes,
)

logger = logging.getLogger(__name__)


async def generate(request: Request, context: ServingContext, call: GenerationCall) -> Response:
    """Answer a call.

    Raises:
        RequestError: It is refused; nothing has been sent.
        EngineError: It failed before the first delta, or, unary, before the last.
        ClientGoneError: Nobody waits for the answer any more.
    """
    prepared, stream = await _submit(request, context, call)
    try:
        answer = Answer(prepared.requests, call.sampling.n, call.num_shown, prepared.echoes)
        answer_format = call.make_format(prepared.prompts)
        if call.stream_options is None:
            await unless_client_goes(request.receive, _collect(stream, answer))
            stream.close()
            body = await context.off_loop(_whole_body, answer_format, answer)
            return Response(body, media_type="application/json")
        first = await unless_client_goes(request.receive, anext(stream))
        opening = answer.take(first)
    except BaseException:
        stream.close()
        raise
    frames = StreamFrames(answer_format, call.stream_options, answer)
    return EventStreamResponse(frames.all(opening, stream), stream.close)


async def _submit(
    request: Request, context: ServingContext, call: GenerationCall
) -> tuple[PreparedCall, QueuedStream]:
    """Take the places, prepare off the loop, and queue the requests."""
    engine = context.engine
    check_num_choices(call.num_choices, engine.max_in_flight)
    queued = QueuedCall(context.prompt_queue)
    try:
        with engine.reserve(call.num_choices) as places:
            queued.expect(call.min_prompt_tokens * call.sampling.n, call.num_choices)
            prepared = await context.off_loop(prepare_call, context, call, salt_of(request))
            queued.add(prepared.requests)
            stream = engine.submit(prepared.requests, places)
    except BaseException:
        queued.close()
        raise
    return prepared, QueuedStream(stream, queued)


def _whole_body(answer_format: AnswerFormat, answer: Answer) -> str:
    """Write a unary answer; many log-probabilities take their time."""
    return answer_format.whole(answer).model_dump_json(exclude_unset=True)


async def _collect(stream: QueuedStream, answer: Answer) -> None:
    async for delta in stream:
        answer.take(delta)


@dataclass(frozen=True, slots=True)
class StreamFrames:
    """Makes the frames of a stream out of deltas."""

    answer_format: AnswerFormat
    options: StreamOptions
    answer: Answer

    async def all(self, first: Piece, rest: AsyncIterator[OutputDelta]) -> AsyncIterator[bytes]:
        """Yield every frame; an answer that is cut ends with an error frame and no [DONE].

        Args:
            first: What the first delta brought; it has been taken already.
            rest: All other deltas.
        """
        try:
            for chunk in self.answer_format.opening(len(self.answer.choices)):
                yield self._frame(chunk)
            for chunk in self.answer_format.chunks(first):
                yield self._frame(chunk)
            async for delta in rest:
                for chunk in self.answer_format.chunks(self.answer.take(delta)):
                    yield self._frame(chunk)
            if self.options.include_usage:
                yield _data(self.answer_format.closing(self.answer.usage()))
            yield DONE_FRAME
        except Exception as error:  # border: the status line is out, so the error is a frame
            logger.error("A stream was cut.", exc_info=not isinstance(error, NanoserveError))
            yield frame(strict_json(error_body(error)))

    def _frame(self, chunk: Any) -> bytes:
        """Return a chunk's frame, with the usage key that the client asked for."""
        if self.options.include_usage:
            so_far = self.answer.usage() if self.options.continuous_usage_stats else None
            chunk.usage = so_far
        return _data(chunk)


def _data(chunk: BaseModel) -> bytes:
    return frame(chunk.model_dump_json(exclude_unset=True))
