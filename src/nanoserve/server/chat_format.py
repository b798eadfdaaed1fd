"""A chat answer in OpenAI's words: whole, or as the chunks of a stream."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from nanoserve.engine.interface import TextCodec
from nanoserve.sched.step import FinishReason
from nanoserve.server.answer import Answer, Choice, Piece
from nanoserve.server.answer_head import AnswerHead
from nanoserve.server.answer_models import (
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    FinishReasonField,
    Usage,
    wire_reason,
)
from nanoserve.server.logprob_format import ScoredToken, chat_logprobs
from nanoserve.server.message_parser import MessageParser
from nanoserve.server.message_words import delta_of, message_of


class ChatFormat:
    """Writes one answer. Log-probabilities wait for the next chunk that says something."""

    def __init__(
        self,
        head: AnswerHead,
        codec: TextCodec,
        has_logprobs: bool,
        make_parser: Callable[[], MessageParser],
    ) -> None:
        """Start before the first piece.

        Args:
            head: What every chunk begins with.
            codec: Spells tokens.
            has_logprobs: Whether the client asked for log-probabilities.
            make_parser: Makes the parser of each choice.
        """
        self._head = head
        self._codec = codec
        self._has_logprobs = has_logprobs
        self._parsers: dict[int, MessageParser] = defaultdict(make_parser)
        self._waiting: dict[int, list[ScoredToken]] = defaultdict(list)

    def whole(self, answer: Answer) -> ChatBody:
        """Return the complete response."""
        return ChatBody(
            id=self._head.answer_id,
            object="chat.completion",
            created=self._head.created,
            model=self._head.model,
            choices=[self._choice(i, choice) for i, choice in enumerate(answer.shown())],
            usage=answer.usage(),
        )

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        parts = self._parsers[index].push(choice.text, is_last=True)
        return ChatChoice(
            index=index,
            message=message_of(parts),
            logprobs=self._write(choice.tokens),
            finish_reason=self._reason(index, choice.finish_reason),
        )

    def opening(self, num_choices: int) -> Iterator[ChatChunk]:
        """Yield each choice's first chunk: the role, and no text yet."""
        for index in range(num_choices):
            yield self._chunk(index, ChatDelta(role="assistant", content=""), (), None)

    def chunks(self, piece: Piece) -> Iterator[ChatChunk]:
        """Yield the parts of a piece, then its end, each in a chunk of its own."""
        index, is_last = piece.index, piece.finish_reason is not None
        waiting = self._waiting[index]
        waiting += piece.tokens
        for part in self._parsers[index].push(piece.text, is_last):
            yield self._chunk(index, delta_of(part), waiting, None)
            waiting.clear()
        if is_last:
            reason = self._reason(index, piece.finish_reason)
            yield self._chunk(index, ChatDelta(), waiting, reason)

    def closing(self, usage: Usage) -> ChatChunk:
        """Return the chunk that holds the usage alone."""
        body = self._body([])
        body.usage = usage
        return body

    def _reason(self, index: int, reason: FinishReason | None) -> FinishReasonField | None:
        """Return the wire's word for an end; one that called tools has its own."""
        if reason is FinishReason.STOP and self._parsers[index].has_calls:
            return "tool_calls"
        return wire_reason(reason)

    def _write(self, tokens: Sequence[ScoredToken]) -> ChatLogprobs | None:
        return chat_logprobs(tokens, self._codec) if self._has_logprobs else None

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        tokens: Sequence[ScoredToken],
        reason: FinishReasonField | None,
    ) -> ChatChunk:
        logprobs = self._write(tokens) if tokens else None
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=reason)
        return self._body([choice])

    def _body(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self._head.answer_id,
            object="chat.completion.chunk",
            created=self._head.created,
            model=self._head.model,
            choices=choices,
        )
