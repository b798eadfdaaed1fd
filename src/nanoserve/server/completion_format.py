"""A completion in OpenAI's words: whole, or as the chunks of a stream."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from nanoserve.engine.interface import TextCodec
from nanoserve.server.answer import Answer, Piece
from nanoserve.server.answer_head import AnswerHead
from nanoserve.server.answer_models import (
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
    FinishReasonField,
    Usage,
    wire_reason,
)
from nanoserve.server.logprob_format import CompletionLogprobWriter, ScoredToken


class CompletionFormat:
    """Writes one answer.

    Log-probabilities wait for the next chunk with text, or the last one: a chunk without
    text would be an answer that has nothing to say.
    """

    def __init__(self, head: AnswerHead, codec: TextCodec, has_logprobs: bool) -> None:
        """Start before the first piece.

        Args:
            head: What every chunk begins with.
            codec: Spells tokens.
            has_logprobs: Whether the client asked for log-probabilities.
        """
        self._head = head
        self._codec = codec
        self._has_logprobs = has_logprobs
        self._waiting: dict[int, list[ScoredToken]] = defaultdict(list)
        self._writers: dict[int, CompletionLogprobWriter] = {}

    def whole(self, answer: Answer) -> CompletionBody:
        """Return the complete response."""
        choices = [
            self._choice(index, choice.text, choice.tokens, wire_reason(choice.finish_reason))
            for index, choice in enumerate(answer.shown())
        ]
        body = self._body(choices)
        body.usage = answer.usage()
        return body

    def opening(self, num_choices: int) -> Iterator[CompletionBody]:
        """Yield the chunks before any text: none."""
        return iter(())

    def chunks(self, piece: Piece) -> Iterator[CompletionBody]:
        """Yield the chunk of a piece; none if it neither adds text nor ends."""
        waiting = self._waiting[piece.index]
        waiting += piece.tokens
        if piece.text or piece.finish_reason is not None:
            reason = wire_reason(piece.finish_reason)
            yield self._body([self._choice(piece.index, piece.text, waiting, reason)])
            waiting.clear()

    def closing(self, usage: Usage) -> CompletionBody:
        """Return the chunk that holds the usage alone."""
        body = self._body([])
        body.usage = usage
        return body

    def _choice(
        self,
        index: int,
        text: str,
        tokens: Sequence[ScoredToken],
        reason: FinishReasonField | None,
    ) -> CompletionChoice:
        logprobs = self._write(index, tokens, text)
        return CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=reason)

    def _write(
        self, index: int, tokens: Sequence[ScoredToken], text: str
    ) -> CompletionLogprobs | None:
        if not self._has_logprobs:
            return None
        if index not in self._writers:
            self._writers[index] = CompletionLogprobWriter(self._codec)
        return self._writers[index].write(tokens, text)

    def _body(self, choices: list[CompletionChoice]) -> CompletionBody:
        return CompletionBody(
            id=self._head.answer_id,
            object="text_completion",
            created=self._head.created,
            model=self._head.model,
            choices=choices,
        )
