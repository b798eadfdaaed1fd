"""SmolLM2-135M-Instruct: greedy tokens of a configuration depend on no company and no mode.

A configuration is a compute dtype, a format of the weights and one of the KV pool. Native
operators compute a row alike whatever else is computed, so that within a configuration all
ways to an answer must give the very same tokens, in bfloat16 and 4 bits too. Between
configurations tokens may differ: other tests bound that.
"""

from dataclasses import dataclass
from itertools import product
from pydoc_data import topics
from typing import Any

import pytest

from nanoserve.launch.llm import LLM
from nanoserve.sched.sampling_params import SamplingParams
from tests.native_kernels import needs_kernels
from tests.reference.prompts import PROMPTS
from tests.reference.smollm2 import answers, load_smollm2

pytestmark = [pytest.mark.slow, needs_kernels]

MAX_NUM_SEQS = 16
MAX_MODEL_LEN = 512
TIGHT_BLOCKS = 21  # with the long prompt in, for one or two answers beside it
LONG_PROMPT_CHARS = 1040  # over 256 tokens: attention goes over it in two parts


@dataclass(frozen=True)
class Case:
    """One configuration, and how much of it is tried."""

    dtype: str
    quantization: str
    kv_cache_dtype: str
    num_prompts: int
    num_tokens: int

    def __str__(self) -> str:
        return f"{self.dtype}-{self.quantization}-{self.kv_cache_dtype}"

    def load(self, **changes: Any) -> LLM:
        fields: dict[str, Any] = {
            "dtype": self.dtype,
            "quantization": self.quantization,
            "kv_cache_dtype": self.kv_cache_dtype,
            "max_num_seqs": MAX_NUM_SEQS,
            "max_model_len": MAX_MODEL_LEN,
            "decode_mode": "eager",
            "enable_prefix_caching": False,
        }
        return load_smollm2(**(fields | changes))

    @property
    def prompts(self) -> list[str]:
        """A long prompt among short ones, of as many lengths as there are."""
        short = PROMPTS[:: len(PROMPTS) // self.num_prompts][: self.num_prompts - 1]
        return [topics.topics["with"][:LONG_PROMPT_CHARS], *short]

    def tokens(self, llm: LLM, prompts: list[str] | None = None) -> list[list[int]]:
        sampling = SamplingParams(temperature=0.0, max_tokens=self.num_tokens, ignore_eos=True)
        prompts = prompts or self.prompts
        return answers(llm, prompts, [sampling] * len(prompts))


QUICK = [
    Case("bfloat16", "none", "fp8", 6, 10),
    Case("bfloat16", "int8", "auto", 6, 10),
    Case("float32", "int4", "int8", 6, 10),
]
ALL = [
    Case(*choices, 16, 48)
    for choices in product(
        ("float32", "bfloat16"), ("none", "int8", "int4"), ("auto", "int8", "fp8")
    )
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=f"quick-{case}") for case in QUICK]
    + [pytest.param(case, id=f"full-{case}", marks=pytest.mark.exhaustive) for case in ALL],
)
def test_tokens_depend_on_no_company_and_no_mode(case: Case) -> None:
    """Alone, in a crowd, cached, in small chunks, preempted, padded and recorded: the same."""
    eager = case.load()
    expected = case.tokens(eager)
    differing = []

    def compare(way: str, found: list[list[int]]) -> None:
        if found != expected:
            differing.append(way)

    compare("alone", [case.tokens(eager, [prompt])[0] for prompt in case.prompts])
    del eager
    for mode in ("bucketed", "captured"):
        caching = case.load(decode_mode=mode, enable_prefix_caching=True, warm=False)
        compare(mode, case.tokens(caching))
        compare(f"{mode}, cached", case.tokens(caching))
        assert num_cached_tokens(caching, case) > 0
        del caching
    for mode in ("eager", "captured"):
        chunked = case.load(decode_mode=mode, max_num_batched_tokens=33, warm=False)
        compare(f"{mode}, in chunks", case.tokens(chunked))
        del chunked
        tight = case.load(
            decode_mode=mode, num_blocks=TIGHT_BLOCKS, max_model_len=16 * TIGHT_BLOCKS, warm=False
        )
        compare(f"{mode}, preempted", case.tokens(tight))
        assert tight.num_preemptions > 0
        del tight
    single = case.load(decode_mode="captured", max_num_seqs=1, warm=False)
    compare("one at a time", case.tokens(single))
    assert differing == []


def num_cached_tokens(llm: LLM, case: Case) -> int:
    """Return how many tokens of the long prompt come from cached blocks now."""
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    (output,) = llm.generate(case.prompts[0], sampling, show_progress=False)
    return output.num_cached_tokens
