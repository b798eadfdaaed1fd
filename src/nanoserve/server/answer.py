"""The answers of one call as they grow: text, end, log-probabilities and counts of each choice.

Knows nothing of endpoints; `completion_format` and `chat_format` put it into words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nanoserve.engine.interface import GenerationRequest, OutputDelta
from nanoserve.errors import EngineError, EngineStoppedError
from nanoserve.sched.step import FinishReason
from nanoserve.server.answer_models import PromptTokensDetails, Usage
from nanoserve.server.logprob_format import ScoredToken


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice gained.

    Attributes:
        index: Which choice.
        text: New text, possibly ''; the first piece of an echoed prompt begins with it.
        finish_reason: On its last piece.
        tokens: New tokens with their log-probabilities, where the call asks for them.
    """

    index: int
    text: str
    finish_reason: FinishReason | None
    tokens: tuple[ScoredToken, ...] = ()


@dataclass(slots=True)
class Choice:
    """One answer so far; written by `Answer` alone."""

    request: GenerationRequest
    echo: str | None = None  # the prompt's text, until the first piece has taken it along
    pieces: list[str] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    @property
    def mean_logprob(self) -> float:
        """Log-probability per token: what makes one answer better than another."""
        return self.cumulative_logprob / max(self.num_output_tokens, 1)


class Answer:
    """All choices of a call, fed with deltas."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        samples_per_prompt: int,
        shown_per_prompt: int | None = None,
        echoes: Sequence[str] = (),
    ) -> None:
        """Start empty.

        Args:
            requests: One per choice, prompt-major.
            samples_per_prompt: How many of them share a prompt.
            shown_per_prompt: How many of those the client gets; None for all.
            echoes: The text of each prompt, where it is part of the answer.
        """
        self._indices = {request.request_id: i for i, request in enumerate(requests)}
        self._samples_per_prompt = samples_per_prompt
        self._shown_per_prompt = shown_per_prompt or samples_per_prompt
        self.choices = [
            Choice(request, echoes[i // samples_per_prompt] if echoes else None)
            for i, request in enumerate(requests)
        ]

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
        tokens = tuple(_scored_tokens(choice, delta))
        text, choice.echo = (choice.echo or "") + delta.text, None
        if text:
            choice.pieces.append(text)
        choice.tokens += tokens
        choice.cumulative_logprob += sum(scores.logprob for scores in delta.logprobs)
        choice.num_output_tokens += len(delta.token_ids)
        choice.num_cached_tokens = delta.num_cached_tokens
        choice.finish_reason = delta.finish_reason
        return Piece(index, text, delta.finish_reason, tokens)

    def shown(self) -> list[Choice]:
        """Return the choices that the client gets: of each prompt the likeliest, best first."""
        if self._shown_per_prompt == self._samples_per_prompt:
            return self.choices
        found: list[Choice] = []
        for start in range(0, len(self.choices), self._samples_per_prompt):
            samples = self.choices[start : start + self._samples_per_prompt]
            samples.sort(key=lambda choice: choice.mean_logprob, reverse=True)
            found += samples[: self._shown_per_prompt]
        return found

    def usage(self) -> Usage:
        """Return the tokens so far; a prompt counts once, with its first choice's prefix hit."""
        first_choices = self.choices[:: self._samples_per_prompt]
        prompt_tokens = sum(len(choice.request.prompt_token_ids) for choice in first_choices)
        completion_tokens = sum(choice.num_output_tokens for choice in self.choices)
        cached_tokens = sum(choice.num_cached_tokens for choice in first_choices)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        )


def _scored_tokens(choice: Choice, delta: OutputDelta) -> Iterator[ScoredToken]:
    if choice.echo is not None and delta.prompt_logprobs is not None:
        prompt_token_ids = choice.request.prompt_token_ids
        for token_id, scores in zip(prompt_token_ids, delta.prompt_logprobs, strict=True):
            yield ScoredToken(token_id, scores)
    for scores in delta.logprobs:
        yield ScoredToken(scores.token_id, scores)
