"""What the engine can serve, and the check every request passes before it is queued.

Pure: HTTP handlers call it to answer 400 at the door, `Scheduler.add` calls it again so
that nothing impossible is ever queued.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanoserve.errors import InvalidRequestError, OptionError, PromptTooLongError
from nanoserve.sched.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The numbers a scheduler works within, fixed at boot.

    Attributes:
        num_blocks: Blocks of the KV pool.
        block_size: Tokens per block.
        max_num_seqs: Most requests that run at once.
        max_num_batched_tokens: Token budget of one step; at least `max_num_seqs`.
        max_model_len: Longest prompt + output, in tokens.
        vocab_size: Token ids are 0 to this, exclusive.
        eos_token_ids: The model's own stop ids.
        enable_prefix_caching: Whether computed blocks are reused by later requests.
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        """Refuse limits under which no request, or not every decode, could run.

        Raises:
            OptionError: Names the field and its value.
        """
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_model_len", "vocab_size"):
            if getattr(self, name) < 1:
                message = f"{name} is {getattr(self, name)}; it must be at least 1."
                raise OptionError(message)
        if self.max_num_batched_tokens < self.max_num_seqs:
            message = (
                f"The token budget of a step is {self.max_num_batched_tokens} and "
                f"{self.max_num_seqs} requests may run at once; each needs one token per step. "
                f"Raise --max-num-batched-tokens to {self.max_num_seqs}, "
                f"or lower --max-num-seqs to {self.max_num_batched_tokens}."
            )
            raise OptionError(message)

    @property
    def max_request_tokens(self) -> int:
        """Longest prompt + output one request may have: the context, or the whole pool if less."""
        return min(self.max_model_len, self.num_blocks * self.block_size)

    def stop_ids_of(self, sampling: SamplingParams) -> frozenset[int]:
        """Return every token id that ends a request with these parameters."""
        own_stops = frozenset() if sampling.ignore_eos else self.eos_token_ids
        return own_stops.union(sampling.stop_token_ids)


def admit_or_refuse(
    limits: EngineLimits, prompt_token_ids: Sequence[int], sampling: SamplingParams
) -> SamplingParams:
    """Return `sampling` with `max_tokens` resolved, or refuse what can never be served.

    What is admitted fits the context and, alone, the KV pool: so the oldest running
    request can always be completed.

    Args:
        limits: The engine's limits.
        prompt_token_ids: At least one token, each inside the vocabulary.
        sampling: `max_tokens` None becomes what the prompt leaves of the context and pool.

    Raises:
        InvalidRequestError: The prompt is empty, or an id is outside the vocabulary.
        PromptTooLongError: Prompt and output together pass the limit.
    """
    if not prompt_token_ids:
        message = "The prompt is empty; it needs at least one token."
        raise InvalidRequestError(message, "prompt")
    room = limits.max_request_tokens - len(prompt_token_ids)
    at_least = max(1, sampling.min_tokens)
    requested = at_least if sampling.max_tokens is None else sampling.max_tokens
    if requested > room:
        raise PromptTooLongError(
            limits.max_request_tokens, len(prompt_token_ids), requested, "prompt"
        )
    _check_vocabulary(limits, "prompt", prompt_token_ids)
    _check_vocabulary(limits, "stop_token_ids", sampling.stop_token_ids)
    _check_vocabulary(limits, "logit_bias", [token_id for token_id, _ in sampling.logit_bias])
    return sampling if sampling.max_tokens is not None else replace(sampling, max_tokens=room)


def _check_vocabulary(limits: EngineLimits, field: str, token_ids: Sequence[int]) -> None:
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < limits.vocab_size:
            message = (
                f"{field} has token id {token_id} at index {index}; "
                f"ids of this model are 0 to {limits.vocab_size - 1}."
            )
            raise InvalidRequestError(message, field)
