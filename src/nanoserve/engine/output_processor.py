"""Token events to text: detokenises, looks for stop strings, counts, says why it ended.

Owns the text side of each running request. Knows nothing of blocks or of the scheduler:
it is told what happened and says whether a stop string ended the request early. The step
loop around it is `engine_core`.
"""

from nanoserve.engine.interface import DecodeStream, GenerationRequest, OutputDelta, TextCodec
from nanoserve.sched.step import FinishReason, TokenEvent
from nanoserve.text.stop_strings import StopChecker


class OutputProcessor:
    """The text of every request in the engine, one `RequestOutput` each."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._outputs: dict[str, RequestOutput] = {}

    def add(self, request: GenerationRequest) -> None:
        """Start the text of a request."""
        self._outputs[request.request_id] = RequestOutput(request, self._codec.decode_stream())

    def remove(self, request_id: str) -> None:
        """Forget a request; nothing happens if it is not known."""
        self._outputs.pop(request_id, None)

    def process(self, event: TokenEvent, num_cached_tokens: int = 0) -> OutputDelta:
        """Turn one event into what the client gains by it.

        Args:
            event: Of a request that was added.
            num_cached_tokens: Of its prompt, taken from the prefix cache.

        Returns:
            The delta. Its `finish_reason` is STOP where a stop string ended the request
            although the event did not: the caller then takes it from the scheduler.

        Raises:
            Exception: Whatever the decoder raises on this request's tokens.
        """
        output = self._outputs[event.request_id]
        delta = output.process(event, num_cached_tokens)
        if delta.finish_reason is not None:
            self.remove(event.request_id)
        return delta


class RequestOutput:
    """The text of one request so far.

    A stop string is looked for in the text that comes after the first `min_tokens` tokens.
    The tokens whose text it cut off stay in the deltas, with their logprobs: they were
    drawn, and they count.
    """

    def __init__(self, request: GenerationRequest, decoder: DecodeStream) -> None:
        self._request_id = request.request_id
        self._decoder = decoder
        self._stops = StopChecker(request.sampling.stop)
        self._include_stop = request.sampling.include_stop
        self._min_tokens = request.sampling.min_tokens
        self._num_tokens = 0

    def process(self, event: TokenEvent, num_cached_tokens: int) -> OutputDelta:
        """Return the text that `event` makes certain, and the end if there is one."""
        if event.error is not None:
            return OutputDelta(
                self._request_id,
                "",
                (),
                event.finish_reason,
                num_cached_tokens=num_cached_tokens,
                error=event.error,
            )
        text, matched = self._advance(event)
        finish_reason = event.finish_reason
        stop_reason: str | int | None = event.stop_token_id
        if matched is not None:
            finish_reason, stop_reason = FinishReason.STOP, matched
        return OutputDelta(
            request_id=self._request_id,
            text=text,
            token_ids=() if event.token_id is None else (event.token_id,),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_cached_tokens=num_cached_tokens,
            logprobs=() if event.logprobs is None else (event.logprobs,),
        )

    def _advance(self, event: TokenEvent) -> tuple[str, str | None]:
        decoded = ""
        self._num_tokens += event.token_id is not None
        if event.token_id is not None and event.stop_token_id is None:
            decoded = self._decoder.push(event.token_id)
        if event.finish_reason is not None:
            decoded += self._decoder.flush()
        if self._num_tokens <= self._min_tokens:
            return decoded, None
        text, matched = self._stops.push(decoded)
        if matched is None and event.finish_reason is not None:
            text += self._stops.flush()
            matched = self._stops.matched
        if matched is not None and self._include_stop:
            text += matched
        return text, matched
