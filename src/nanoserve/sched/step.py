"""The contract in the middle: `StepPlan` goes down to a runner, `StepResult` comes up.

Both are frozen and made of ints, floats and strings, so a recorded list of them is a
replayable trace and every tensor-parallel rank can be handed the same one.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.token_history import TokenHistory


class FinishReason(StrEnum):
    """Why a request ended. Every admitted request ends with exactly one of these."""

    STOP = "stop"  # a stop id, or a stop string found by the engine
    LENGTH = "length"  # max_tokens, or the end of the context
    ABORT = "abort"  # the client went away, or the server shuts down
    ERROR = "error"  # an exception while serving it


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely one token was, and what else might have stood in its place.

    Natural logarithms of the model's own probabilities: before temperature, penalties,
    biases and filters. Finite: what is less likely than the floor stands at it.

    Attributes:
        token_id: The token that was drawn, or that stands in the prompt.
        logprob: Its log-probability.
        top: The likeliest tokens with theirs, likeliest first; as many as were asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """What one request computes in one step.

    ```
    tokens of the request   [0 ........ num_computed_tokens) [ ...... num_scheduled) [ rest )
    owner                    KV is in the pool               token_ids, this step    later
    ```

    Attributes:
        request_id: Whose tokens these are.
        token_ids: The tokens to compute; one for a decode, several for a prefill chunk.
        num_computed_tokens: Tokens whose KV is in the pool already; the first of
            `token_ids` has this position.
        block_table: Blocks of the request in order; covers every token up to and with
            this step's.
        sampling: How to draw the next token.
        seed: Resolved seed of this request; never None.
        samples: Whether the last of `token_ids` yields a new token. False for a chunk
            that does not reach the end of the prompt.
        scored_token_ids: For a request that scores its prompt, the token that follows
            each of `token_ids` (a prompt's last token is followed by none, so this may
            be one shorter); empty otherwise.
        history: Prompt and output so far, where the draw depends on them (penalties).
        banned_token_ids: Tokens that may not be drawn in this step: the request's stop ids
            while it has fewer than its least number of tokens.
        allowed_tokens: Bits of the tokens that a grammar allows, lowest bit of the first
            byte is token 0; None where every token is.
    """

    request_id: str
    token_ids: tuple[int, ...]
    num_computed_tokens: int
    block_table: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    samples: bool
    scored_token_ids: tuple[int, ...] = ()
    history: TokenHistory | None = None
    banned_token_ids: tuple[int, ...] = ()
    allowed_tokens: bytes | None = None

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens of this request in this step."""
        return len(self.token_ids)

    @property
    def context_len(self) -> int:
        """Tokens whose KV is in the pool once the step is done; position of the new token."""
        return self.num_computed_tokens + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass.

    Attributes:
        step_id: Counts from 0.
        scheduled: Decodes first, then prefill chunks; never the same request twice.
        preempted: Ids of requests sent back to the queue to make room for this step.
        admitted: Ids of requests taken from the queue for this step, preempted ones that
            come back included.
    """

    step_id: int
    scheduled: tuple[ScheduledRequest, ...]
    preempted: tuple[str, ...] = ()
    admitted: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step; at most the token budget."""
        return sum(len(request.token_ids) for request in self.scheduled)

    @property
    def is_decode(self) -> bool:
        """Whether every request computes exactly one token, so that the step can be replayed."""
        return all(len(request.token_ids) == 1 for request in self.scheduled)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.scheduled


class StepMode(StrEnum):
    """How a step ran."""

    EAGER = "eager"  # as it came, no padding
    BUCKETED = "bucketed"  # padded to a planned shape
    REPLAYED = "replayed"  # padded, and a graph recorded earlier was run
    LATE = "late"  # padded, and the graph was recorded in this step, while a client waited


@dataclass(frozen=True, slots=True)
class StepExecution:
    """How a step ran, for the statistics.

    Attributes:
        mode: The way it ran.
        padded_rows: Rows added to reach its shape.
        num_evicted: Recorded graphs dropped to hold this step's.
    """

    mode: StepMode = StepMode.EAGER
    padded_rows: int = 0
    num_evicted: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a runner found.

    Attributes:
        step_id: The plan this answers.
        sampled_token_ids: New token of each scheduled request in the plan's order;
            None where the plan said it does not sample, and for a failed one.
        prompt_logprobs: For each scheduled request with `scored_token_ids`, how likely
            each of them was, by request id.
        execution: How the step ran.
        logprobs: For each request that sampled and asks for them, how likely its new token
            was, by request id.
        failed: Requests whose logits were not finite, with the problem in words.
    """

    step_id: int
    sampled_token_ids: tuple[int | None, ...]
    prompt_logprobs: dict[str, tuple[TokenLogprobs, ...]]
    execution: StepExecution = StepExecution()
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What happened to one request in one step.

    Attributes:
        request_id: Whose event this is.
        token_id: The new token, stop ids included; None for an end without one.
        finish_reason: Set exactly once in a request's life, on its last event.
        stop_token_id: The stop id that ended it, if one did.
        logprobs: How likely the new token was, where the request asks for it.
        error: What went wrong, with `FinishReason.ERROR`.
    """

    request_id: str
    token_id: int | None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    error: str | None = None
