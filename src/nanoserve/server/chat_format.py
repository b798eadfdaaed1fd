"""A chat answer in OpenAI's words: whole, or as the chunks of a stream."""

from collections.abc import Iterator
from dataclasses import dataclass

from nanoserve.server.answer import Answer, Piece
from nanoserve.server.answer_models import (
    ChatAnswerMessage,
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    FinishReasonField,
    Usage,
    wire_reason,
)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The parts that all chunks of one answer share.

    Attributes:
        answer_id: "chatcmpl-…".
        created: Unix seconds.
        model: The served name.
    """

    answer_id: str
    created: int
    model: str

    def whole(self, answer: Answer) -> ChatBody:
        """Return the complete response."""
        choices = [
            ChatChoice(
                index=index,
                message=ChatAnswerMessage(role="assistant", content=choice.text, refusal=None),
                logprobs=None,
                finish_reason=wire_reason(choice.finish_reason),
            )
            for index, choice in enumerate(answer.choices)
        ]
        return ChatBody(
            id=self.answer_id,
            object="chat.completion",
            created=self.created,
            model=self.model,
            choices=choices,
            usage=answer.usage(),
        )

    def opening(self, num_choices: int) -> Iterator[ChatChunk]:
        """Yield each choice's first chunk: the role, and no text yet."""
        for index in range(num_choices):
            yield self._chunk(index, ChatDelta(role="assistant", content=""), None)

    def chunks(self, piece: Piece) -> Iterator[ChatChunk]:
        """Yield the text of a piece, then its end, each in a chunk of its own."""
        if piece.text:
            yield self._chunk(piece.index, ChatDelta(content=piece.text), None)
        if piece.finish_reason is not None:
            yield self._chunk(piece.index, ChatDelta(), wire_reason(piece.finish_reason))

    def closing(self, usage: Usage) -> ChatChunk:
        """Return the chunk that holds the usage alone."""
        body = self._body([])
        body.usage = usage
        return body

    def _chunk(self, index: int, delta: ChatDelta, reason: FinishReasonField | None) -> ChatChunk:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=reason)
        return self._body([choice])

    def _body(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self.answer_id,
            object="chat.completion.chunk",
            created=self.created,
            model=self.model,
            choices=choices,
        )
