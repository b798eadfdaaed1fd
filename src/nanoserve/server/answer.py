"""The answers of one call as they grow: text, end and token counts of each choice.

Knows nothing of endpoints; `completion_format` and `chat_format` put it into words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nanoserve.engine.interface import GenerationRequest, OutputDelta
from nanoserve.errors import EngineError, EngineStoppedError
from nanoserve.sched.step import FinishReason
from nanoserve.server.answer_models import PromptTokensDetails, Usage


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice gained.

    Attributes:
        index: Which choice.
        text: New text, possibly ''.
        finish_reason: On its last piece.
    """

    index: int
    text: str
    finish_reason: FinishReason | None


@dataclass(slots=True)
class Choice:
    """One answer so far; written by `Answer` alone."""

    num_prompt_tokens: int
    pieces: list[str]
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)


class Answer:
    """All choices of a call, fed with deltas."""

    def __init__(self, requests: Sequence[GenerationRequest], choices_per_prompt: int) -> None:
        """Start empty.

        Args:
            requests: One per choice, in the order of their index.
            choices_per_prompt: `n` of the call.
        """
        self._indices = {request.request_id: i for i, request in enumerate(requests)}
        self._choices_per_prompt = choices_per_prompt
        self.choices = [Choice(len(request.prompt_token_ids), []) for request in requests]

    def take(self, delta: OutputDelta) -> Piece:
        """Add a delta.

        Raises:
            EngineStoppedError: The server ended the request before it was complete.
            EngineError: The request failed.
        """
        if delta.finish_reason is FinishReason.ABORT:
            raise EngineStoppedError(delta.error or "The request was aborted.")
        if delta.finish_reason is FinishReason.ERROR:
            raise EngineError(delta.error or "The request failed.")
        index = self._indices[delta.request_id]
        choice = self.choices[index]
        if delta.text:
            choice.pieces.append(delta.text)
        choice.num_output_tokens += len(delta.token_ids)
        choice.num_cached_tokens = delta.num_cached_tokens
        choice.finish_reason = delta.finish_reason
        return Piece(index, delta.text, delta.finish_reason)

    def usage(self) -> Usage:
        """Return the tokens so far; a prompt counts once, with its first choice's prefix hit."""
        first_choices = self.choices[:: self._choices_per_prompt]
        prompt_tokens = sum(choice.num_prompt_tokens for choice in first_choices)
        completion_tokens = sum(choice.num_output_tokens for choice in self.choices)
        cached_tokens = sum(choice.num_cached_tokens for choice in first_choices)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        )
