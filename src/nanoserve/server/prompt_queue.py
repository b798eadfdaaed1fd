"""The bound on prompt tokens that wait for their first answer token.

Touched in the event loop alone. What counts requests is the engine's own bound.
"""

from collections.abc import Callable, Sequence
from typing import Self

from nanoserve.engine.interface import GenerationRequest, OutputDelta
from nanoserve.engine.output_stream import OutputStream
from nanoserve.errors import QueueFullError


class PromptQueue:
    """Counts the prompt tokens of requests that have produced nothing yet.

    Attributes:
        num_tokens: Waiting now.
    """

    def __init__(self, max_tokens: int, on_rejected: Callable[[int], None]) -> None:
        """Start empty.

        Args:
            max_tokens: More than this only for a call that finds the queue empty.
            on_rejected: Told how many requests are turned away.
        """
        self.num_tokens = 0
        self._max_tokens = max_tokens
        self._on_rejected = on_rejected

    def take(self, num_tokens: int, num_requests: int) -> None:
        """Let a call's tokens in.

        Raises:
            QueueFullError: The bound is passed; nothing is taken.
        """
        if self.num_tokens and self.num_tokens + num_tokens > self._max_tokens:
            self._on_rejected(num_requests)
            raise QueueFullError(self.num_tokens, self._max_tokens, what="prompt tokens")
        self.num_tokens += num_tokens

    def give_back(self, num_tokens: int) -> None:
        """Take tokens off the count."""
        self.num_tokens -= num_tokens


class QueuedCall:
    """The share of one call in the queue."""

    def __init__(self, queue: PromptQueue) -> None:
        self._queue = queue
        self._num_expected = 0
        self._waiting: dict[str, int] = {}  # request id to prompt tokens

    def expect(self, num_tokens: int, num_requests: int) -> None:
        """Take what a call has at least, before it is tokenised.

        Raises:
            QueueFullError: Even that is too much.
        """
        self._queue.take(num_tokens, num_requests)
        self._num_expected = num_tokens

    def add(self, requests: Sequence[GenerationRequest]) -> None:
        """Take what the call's requests have, in place of what was expected.

        Raises:
            QueueFullError: It is too much after all.
        """
        waiting = {request.request_id: len(request.prompt_token_ids) for request in requests}
        self.close()
        self._queue.take(sum(waiting.values()), len(requests))
        self._waiting = waiting

    def start(self, request_id: str) -> None:
        """Give back a request's tokens: it has its first delta."""
        self._queue.give_back(self._waiting.pop(request_id, 0))

    def close(self) -> None:
        """Give back everything that is left."""
        self._queue.give_back(self._num_expected + sum(self._waiting.values()))
        self._num_expected = 0
        self._waiting = {}


class QueuedStream:
    """A call's deltas; each request's first one takes it out of the queue."""

    def __init__(self, stream: OutputStream, queued: QueuedCall) -> None:
        self._stream = stream
        self._queued = queued

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputDelta:
        delta = await anext(self._stream)
        self._queued.start(delta.request_id)
        return delta

    def close(self) -> None:
        """Abort the requests that have not ended."""
        self._stream.close()
        self._queued.close()
