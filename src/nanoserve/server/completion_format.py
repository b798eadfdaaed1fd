"""A completion in OpenAI's words: whole, or as the chunks of a stream."""

from collections.abc import Iterator
from dataclasses import dataclass

from nanoserve.server.answer import Answer, Piece
from nanoserve.server.answer_models import CompletionBody, CompletionChoice, Usage, wire_reason


@dataclass(frozen=True, slots=True)
class CompletionFormat:
    """The parts that all chunks of one answer share.

    Attributes:
        answer_id: "cmpl-…".
        created: Unix seconds.
        model: The served name.
    """

    answer_id: str
    created: int
    model: str

    def whole(self, answer: Answer) -> CompletionBody:
        """Return the complete response."""
        choices = [
            CompletionChoice(
                index=index,
                text=choice.text,
                logprobs=None,
                finish_reason=wire_reason(choice.finish_reason),
            )
            for index, choice in enumerate(answer.choices)
        ]
        body = self._body(choices)
        body.usage = answer.usage()
        return body

    def opening(self, num_choices: int) -> Iterator[CompletionBody]:
        """Yield the chunks before any text: none."""
        return iter(())

    def chunks(self, piece: Piece) -> Iterator[CompletionBody]:
        """Yield the chunk of a piece; none if it neither adds text nor ends."""
        if piece.text or piece.finish_reason is not None:
            reason = wire_reason(piece.finish_reason)
            yield self._body(
                [
                    CompletionChoice(
                        index=piece.index, text=piece.text, logprobs=None, finish_reason=reason
                    )
                ]
            )

    def closing(self, usage: Usage) -> CompletionBody:
        """Return the chunk that holds the usage alone."""
        body = self._body([])
        body.usage = usage
        return body

    def _body(self, choices: list[CompletionChoice]) -> CompletionBody:
        return CompletionBody(
            id=self.answer_id,
            object="text_completion",
            created=self.created,
            model=self.model,
            choices=choices,
        )
