"""SmolLM2-135M-Instruct over pools of int8 and fp8: how far from bfloat16, and how steady."""

from pydoc_data import topics
from typing import Any

import pytest

from nanoserve.launch.llm import LLM
from nanoserve.sched.sampling_params import SamplingParams
from tests.native_kernels import needs_kernels
from tests.reference.prompts import PROMPTS
from tests.reference.smollm2 import answers, load_smollm2

pytestmark = [pytest.mark.slow, needs_kernels]

TOPICS = ("assert", "numbers", "strings", "with")  # pages of Python's own help
NUM_TOKENS = 200  # of each
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


def likeliest_tokens(**options: Any) -> list[int]:
    """Return the likeliest token after each token of the texts."""
    llm = load_smollm2(dtype="bfloat16", **options)
    prompts = [llm.tokenizer.encode(topics.topics[topic])[:NUM_TOKENS] for topic in TOPICS]
    scored = SamplingParams(temperature=0.0, max_tokens=1, num_prompt_logprobs=1)
    outputs = llm.generate(prompts, scored, show_progress=False)
    return [
        entry.top[0][0]
        for output in outputs
        for entry in output.prompt_logprobs or ()
        if entry is not None
    ]


@pytest.fixture(scope="module")
def in_bfloat16() -> list[int]:
    return likeliest_tokens()


@pytest.mark.parametrize(("kv_cache_dtype", "least"), [("int8", 0.95), ("fp8", 0.9)])
def test_the_likeliest_token_is_mostly_the_same(
    kv_cache_dtype: str, least: float, in_bfloat16: list[int]
) -> None:
    """int8 agrees as float32 does with bfloat16, 98 %; fp8, which rounds to 4 bits, 94 %."""
    tokens = likeliest_tokens(kv_cache_dtype=kv_cache_dtype)

    agreed = sum(ours == theirs for ours, theirs in zip(tokens, in_bfloat16, strict=True))
    assert len(tokens) > 500
    assert agreed >= least * len(tokens)


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_blocks_mean_the_same_to_whoever_reads_them(kv_cache_dtype: str) -> None:
    """From cached blocks, recorded steps and after preemption come the undisturbed tokens."""
    prompts = [f"{PROMPTS[3]} {prompt}, and so on, in order: first" for prompt in PROMPTS[:6]]
    options = {"kv_cache_dtype": kv_cache_dtype, "max_num_seqs": 6}

    def answered(llm: LLM) -> list[list[int]]:
        return answers(llm, prompts, [GREEDY] * len(prompts))

    undisturbed = answered(load_smollm2(**options, enable_prefix_caching=False))
    caching = load_smollm2(**options)
    tight = load_smollm2(**options, enable_prefix_caching=False, num_blocks=8, max_model_len=64)

    assert answered(caching) == undisturbed
    assert answered(caching) == undisturbed
    assert caching.generate(prompts[0], GREEDY, show_progress=False)[0].num_cached_tokens > 0
    assert answered(load_smollm2(**options, decode_mode="captured")) == undisturbed
    assert answered(tight) == undisturbed
    assert tight.num_preemptions > 0
