"""One generation for one client, from the queue to its last token.

`Request` is mutable and has one owner: only the `Scheduler` writes to it. Everyone else
reads, or works with the frozen messages in `step`.
"""

import secrets
from dataclasses import dataclass, field
from enum import StrEnum

from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import FinishReason, ScheduledRequest
from nanoserve.sched.token_history import TokenHistory


def draw_seed() -> int:
    """Return 63 fresh random bits: the seed of a request that brings none."""
    return secrets.randbits(63)


class RequestStatus(StrEnum):
    """Where a request stands."""

    WAITING = "waiting"  # never admitted
    RUNNING = "running"
    PREEMPTED = "preempted"  # admitted before, back in the queue without blocks
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """State of one request; written by the `Scheduler` alone.

    ```
    token_ids   [ prompt ........................ | output ............ ]
                [ cached ....)                                            prefix hit, at first
                [ computed ..........................)                    KV is in the pool
                [ scored .......)                                         of the prompt
    ```

    Attributes:
        request_id: Unique among requests in flight.
        prompt_token_ids: At least one.
        sampling: With `max_tokens` resolved.
        seed: Resolved; from the client, or drawn once.
        stop_token_ids: Every id that ends this request.
        salt: Requests share prefixes only with requests of the same salt.
        priority: Lower is more urgent.
        arrival: Counts the requests of one scheduler; kept through preemption.
        status: See `RequestStatus`.
        token_ids: Prompt, then output so far.
        block_table: Blocks held, in token order.
        block_hashes: Hashes of the full blocks of `token_ids`; they outlive preemption.
        num_computed_tokens: Tokens whose KV is in the pool, by hit or by work.
        num_cached_tokens: Prompt tokens taken from the prefix cache at first admission.
        num_scored_tokens: Prompt tokens whose successor has been scored, from the first on.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    stop_token_ids: frozenset[int] = frozenset()
    salt: bytes = b""
    priority: int = 0
    arrival: int = 0
    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(init=False)
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_scored_tokens: int = 0

    def __post_init__(self) -> None:
        """Start with the prompt."""
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        """The output so far, stop ids included."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that must be computed before the next one can be drawn; 0 only at the end."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_scoring(self) -> bool:
        """Whether prompt tokens are left to score; the last has no successor."""
        num_to_score = self.num_prompt_tokens - 1
        scores = self.sampling.num_prompt_logprobs is not None
        return scores and self.num_scored_tokens < num_to_score

    @property
    def is_complete(self) -> bool:
        """Whether all is computed and no token is asked for: the end of a scoring call."""
        return self.sampling.max_tokens == 0 and not self.num_uncomputed_tokens

    @property
    def max_hit_tokens(self) -> int:
        """Most tokens a prefix hit may cover.

        One token must be computed to draw the next, and a token whose successor is still
        to be scored must be computed as well.
        """
        return self.num_scored_tokens if self.is_scoring else self.num_tokens - 1

    def chunk_len(self, budget: int) -> int:
        """Return how many tokens to compute next, at most `budget`.

        After preemption a chunk stops where scoring stopped, so that one chunk is either
        scored in all its prompt tokens or in none.
        """
        end = self.num_tokens
        if self.is_scoring and self.num_computed_tokens < self.num_scored_tokens:
            end = self.num_scored_tokens
        return min(budget, end - self.num_computed_tokens)

    def to_scheduled(self, num_scheduled_tokens: int) -> ScheduledRequest:
        """Freeze the next `num_scheduled_tokens` tokens for a plan; the table covers them."""
        start = self.num_computed_tokens
        end = start + num_scheduled_tokens
        scores = self.is_scoring and start >= self.num_scored_tokens
        samples = end == self.num_tokens and self.sampling.max_tokens != 0
        return ScheduledRequest(
            request_id=self.request_id,
            token_ids=tuple(self.token_ids[start:end]),
            num_computed_tokens=start,
            block_table=tuple(self.block_table),
            sampling=self.sampling,
            seed=self.seed,
            samples=samples,
            scored_token_ids=self.prompt_token_ids[start + 1 : end + 1] if scores else (),
            history=self._history() if samples else None,
            banned_token_ids=self._banned_token_ids() if samples else (),
        )

    def _history(self) -> TokenHistory | None:
        if not self.sampling.has_penalties:
            return None
        return TokenHistory(self.token_ids, self.num_prompt_tokens)

    def _banned_token_ids(self) -> tuple[int, ...]:
        is_short = self.num_output_tokens < self.sampling.min_tokens
        return tuple(sorted(self.stop_token_ids)) if is_short else ()

    def advance(self, scheduled: ScheduledRequest) -> None:
        """Count the tokens of `scheduled` as computed, and as scored where they were."""
        self.num_computed_tokens = scheduled.context_len
        if scheduled.scored_token_ids:
            self.num_scored_tokens += len(scheduled.scored_token_ids)

    def append_token(self, token_id: int) -> FinishReason | None:
        """Add a new token; return why the request ends with it, or None."""
        self.token_ids.append(token_id)
        if token_id in self.stop_token_ids:
            return FinishReason.STOP
        if self.num_output_tokens == self.sampling.max_tokens:
            return FinishReason.LENGTH
        return None
