"""Hypothesis strategies: small limits, prompts that share prefixes, sampling parameters."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.sampling_params import SamplingParams

VOCAB_SIZE = 256  # as FakeRunner's
EOS_TOKEN_ID = 5


@st.composite
def engine_limits(draw: st.DrawFn) -> EngineLimits:
    """Pools that hold one or two long requests, so that requests compete and evict."""
    max_num_seqs = draw(st.integers(1, 5))
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    return EngineLimits(
        num_blocks=draw(st.integers(16, 48)) // block_size,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 24)),
        max_model_len=draw(st.integers(12, 64)),
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset({EOS_TOKEN_ID}),
        enable_prefix_caching=draw(st.booleans()),
    )


def prompts() -> SearchStrategy[tuple[int, ...]]:
    """Runs of one token with a short tail: many prompts are prefixes of each other."""
    heads = st.integers(0, 20).map(lambda length: (7,) * length)
    tails = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
    return st.tuples(heads, tails).map(lambda parts: parts[0] + parts[1])


def sampling_params() -> SearchStrategy[SamplingParams]:
    """Every field that the scheduler reads."""
    return _generating() | _scoring_only()


def _generating() -> SearchStrategy[SamplingParams]:
    return st.builds(
        _with_min_tokens,
        max_tokens=st.none() | st.integers(1, 24),
        min_tokens=st.just(0) | st.integers(1, 6),
        seed=st.none() | st.integers(0, 3),
        stop_token_ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2).map(tuple),
        ignore_eos=st.booleans(),
        num_prompt_logprobs=st.none() | st.integers(0, 2),
        num_logprobs=st.none() | st.integers(0, 2),
        frequency_penalty=st.sampled_from([0.0, 1.0]),
    )


def _with_min_tokens(max_tokens: int | None, min_tokens: int, **fields: Any) -> SamplingParams:
    fewest = min_tokens if max_tokens is None else min(min_tokens, max_tokens)
    return SamplingParams(max_tokens=max_tokens, min_tokens=fewest, **fields)


def _scoring_only() -> SearchStrategy[SamplingParams]:
    return st.just(SamplingParams(max_tokens=0, num_prompt_logprobs=0))
