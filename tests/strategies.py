"""Hypothesis strategies: small limits, prompts that share prefixes, sampling parameters, boots."""

from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from nanoserve.options import EngineOptions
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.spec.model_spec import ModelSpec

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


@st.composite
def model_specs(draw: st.DrawFn) -> ModelSpec:
    """Shapes from a few kilobytes to about a gigabyte of weights."""
    num_kv_heads = draw(st.sampled_from([1, 2, 3, 8]))
    return ModelSpec(
        architecture="llama",
        num_layers=draw(st.integers(1, 40)),
        hidden_size=draw(st.integers(1, 32)) * 64,
        num_heads=num_kv_heads * draw(st.integers(1, 4)),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.sampled_from([8, 64, 128])),
        intermediate_size=draw(st.integers(1, 64)) * 128,
        vocab_size=draw(st.integers(100, 150_000)),
        max_position_embeddings=draw(st.sampled_from([64, 2048, 131_072])),
        tie_word_embeddings=draw(st.booleans()),
        sliding_window=draw(st.none() | st.just(256)),
    )


@st.composite
def devices(draw: st.DrawFn) -> DeviceFacts:
    """CPUs and cards, some of them mostly taken by other processes."""
    total_bytes = int(2 ** draw(st.floats(24, 37)))
    context_bytes = draw(st.integers(0, total_bytes // 16))
    own_bytes = draw(st.integers(0, total_bytes // 16))
    others_bytes = draw(st.just(0) | st.integers(0, total_bytes * 7 // 8))
    free_bytes = total_bytes - context_bytes - own_bytes - others_bytes
    reading = MemoryReading(total_bytes, free_bytes, own_bytes, context_bytes)
    kind: Literal["cpu", "cuda"] = draw(st.sampled_from(["cpu", "cuda"]))
    has_native_ops = kind == "cpu" and draw(st.booleans())
    return DeviceFacts(kind, "a device", reading, 4, draw(st.booleans()), has_native_ops)


@st.composite
def boot_options(draw: st.DrawFn) -> EngineOptions:
    """Options that plan memory, some of them impossible to satisfy."""
    size: dict[str, Any] = draw(
        st.sampled_from([{}, {"kv_pool": "demand"}])
        | st.fixed_dictionaries({"num_blocks": st.integers(1, 5000)})
        | st.fixed_dictionaries({"kv_cache_bytes": st.integers(1, 2**34)})
    )
    max_num_seqs = draw(st.integers(1, 64))
    return EngineOptions(
        max_num_seqs=max_num_seqs,
        max_model_len=draw(st.none() | st.integers(2, 140_000)),
        max_num_batched_tokens=draw(st.none() | st.integers(max_num_seqs, 4096)),
        block_size=draw(st.sampled_from([1, 16, 256])),
        gpu_memory_utilization=draw(st.sampled_from([0.1, 0.5, 0.9, 1.0])),
        memory_policy=draw(st.sampled_from(["device", "process"])),
        decode_mode=draw(st.sampled_from(["auto", "eager", "bucketed", "captured"])),
        warm_rows=draw(st.none() | st.integers(1, 64)),
        warm_width=draw(st.none() | st.integers(1, 4096)),
        capture_limit=draw(st.integers(1, 64)),
        capture_bytes=draw(st.none() | st.integers(1, 2**24)),
        **size,
    )


def _with_min_tokens(max_tokens: int | None, min_tokens: int, **fields: Any) -> SamplingParams:
    fewest = min_tokens if max_tokens is None else min(min_tokens, max_tokens)
    return SamplingParams(max_tokens=max_tokens, min_tokens=fewest, **fields)


def _scoring_only() -> SearchStrategy[SamplingParams]:
    return st.just(SamplingParams(max_tokens=0, num_prompt_logprobs=0))
