"""One generation call from reserved place to last frame; both endpoints go through here.

Owns the order: reserve, prepare off the loop, submit, wait for the first delta, and only
then a status line. Whatever way a call ends, its requests are aborted if they still run.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from nanoserve.engine.choices import fan_out
from nanoserve.engine.interface import GenerationRequest, OutputDelta
from nanoserve.engine.output_stream import OutputStream
from nanoserve.errors import NanoserveError
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.server.answer import Answer, Piece
from nanoserve.server.answer_models import Usage
from nanoserve.server.convert import admit_prompts, check_num_choices
from nanoserve.server.error_response import error_body, strict_json
from nanoserve.server.protocol import StreamOptions
from nanoserve.server.serving_context import ServingContext
from nanoserve.server.sse import (
    DONE_FRAME,
    EventStreamResponse,
    frame,
    unless_client_goes,
)

logger = logging.getLogger(__name__)


class AnswerFormat(Protocol):
    """How one endpoint words an answer."""

    def whole(self, answer: Answer) -> BaseModel:
        """Return the complete response."""
        ...

    def opening(self, num_choices: int) -> Iterator[Any]:
        """Yield the chunks before any text."""
        ...

    def chunks(self, piece: Piece) -> Iterator[Any]:
        """Yield the chunks of one piece."""
        ...

    def closing(self, usage: Usage) -> BaseModel:
        """Return the chunk that holds the usage alone."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """One validated call.

    Attributes:
        answer_format: Words and id of the answer.
        answer_id: Start of the request ids.
        sampling: As asked; `n` choices per prompt.
        num_prompts: Known before anything is tokenised.
        encode: Returns the token ids of each prompt; run off the event loop.
        prompt_param: The field the prompts came from.
        stream_options: None for a unary answer.
    """

    answer_format: AnswerFormat
    answer_id: str
    sampling: SamplingParams
    num_prompts: int
    encode: Callable[[], Iterable[tuple[int, ...]]]
    prompt_param: str
    stream_options: StreamOptions | None


async def generate(request: Request, context: ServingContext, call: GenerationCall) -> Response:
    """Answer a call.

    Raises:
        RequestError: It is refused; nothing has been sent.
        EngineError: It failed before the first delta, or, unary, before the last.
        ClientGoneError: Nobody waits for the answer any more.
    """
    engine = context.engine
    num_choices = call.num_prompts * call.sampling.n
    check_num_choices(num_choices, engine.max_in_flight)
    with engine.reserve(num_choices) as places:
        requests = await context.off_loop(prepare_requests, context, call)
        stream = engine.submit(requests, places)
    answer = Answer(requests, call.sampling.n)
    try:
        if call.stream_options is None:
            await unless_client_goes(request.receive, _collect(stream, answer))
            body = call.answer_format.whole(answer).model_dump_json(exclude_unset=True)
            return Response(body, media_type="application/json")
        first = await unless_client_goes(request.receive, anext(stream))
        opening = answer.take(first)
    except BaseException:
        stream.close()
        raise
    frames = StreamFrames(call.answer_format, call.stream_options, answer)
    return EventStreamResponse(frames.all(opening, stream), stream.close)


def prepare_requests(context: ServingContext, call: GenerationCall) -> list[GenerationRequest]:
    """Tokenise and admit a call's prompts; return one request per choice.

    Raises:
        RequestError: A prompt cannot be served.
    """
    limits = context.engine.limits
    prompts, samplings = [], []
    for prompt in call.encode():  # the first one that is too long ends the work
        samplings += admit_prompts(limits, [prompt], call.sampling, call.prompt_param)
        prompts.append(prompt)
    return fan_out(call.answer_id, prompts, samplings)


async def _collect(stream: OutputStream, answer: Answer) -> None:
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
