"""The protocols and messages between engine, runner and server.

`EngineCore` is given a `Runner` and a `TextCodec`; the server is given an
`AsyncEngine`. None of them imports torch, so the whole request path is tested without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import FinishReason, StepPlan, StepResult, TokenLogprobs
from nanoserve.text.grammar_spec import GrammarMatcher


class Runner(Protocol):
    """Executes steps: one forward pass of a batch, and the draw of its new tokens."""

    def execute(self, step: StepPlan) -> StepResult:
        """Compute `step`; write its KV into the pool; return one token per sampling request."""
        ...


class DecodeStream(Protocol):
    """Turns token ids into text one at a time, never splitting a character."""

    def push(self, token_id: int) -> str:
        """Return the text that is now certain; '' while a character is unfinished."""
        ...

    def flush(self) -> str:
        """Return what was held back; called once, at the end."""
        ...


class TextCodec(Protocol):
    """What the engine and the server need of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        ...

    @property
    def longest_token_chars(self) -> int:
        """Characters of the longest token."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`, with BOS where the tokenizer adds one."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`."""
        ...

    def decode_stream(self) -> DecodeStream:
        """Return a new incremental decoder that skips special tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes one token stands for, special tokens written out."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to generate. `sampling.n` is 1: `n` answers are `n` of these.

    Attributes:
        request_id: Unique among requests in flight.
        prompt_token_ids: At least one token.
        sampling: With `max_tokens` resolved to a number.
        priority: Lower goes first among the waiting; equals in order of arrival.
        salt: Prefixes are shared only between requests of the same salt.
        grammar: What the answer must follow, at its start and this request's own; None
            where it is free.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0
    salt: bytes = b""
    grammar: GrammarMatcher | None = None


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one request gained in one step.

    Attributes:
        request_id: Whose it is.
        text: New text, possibly ''. Stop strings and what may become one are not in it.
        token_ids: New token ids, stop ids included.
        finish_reason: Set on the last delta, exactly once.
        stop_reason: The stop string or stop id that ended it, if one did.
        num_cached_tokens: Prompt tokens taken from the prefix cache.
        logprobs: How likely each of `token_ids` was, where the request asks for it.
        prompt_logprobs: With the first delta of a request that scores its prompt: one
            entry per prompt token, None for the first.
        error: What went wrong, with `FinishReason.ERROR`.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    error: str | None = None
