"""Do answers depend on the company? `python -m bench.determinism [prompts] [tokens] [threads]`.

For each dtype, with and without `--deterministic`: the share of greedy continuations that are
the same alone as with all of them in flight, and the tokens a second of both.
"""

import sys
import time
from itertools import islice

import torch
from tests.reference.prompts import PROMPTS

from nanoserve.launch.llm import LLM
from nanoserve.sched.sampling_params import SamplingParams


def generate(llm: LLM, prompts: list[str], num_tokens: int) -> tuple[list[list[int]], float]:
    """Return the answers and the tokens a second."""
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    start_s = time.perf_counter()
    outputs = llm.generate(prompts, sampling, show_progress=False)
    seconds = time.perf_counter() - start_s
    return [output.outputs[0].token_ids for output in outputs], len(prompts) * num_tokens / seconds


def compare(dtype: str, is_deterministic: bool, prompts: list[str], num_tokens: int) -> None:
    """Print one line of the table."""
    llm = LLM(
        "smollm2",
        dtype=dtype,
        deterministic=is_deterministic,
        max_num_seqs=len(prompts),
        max_model_len=512,
        threads=torch.get_num_threads(),
        enable_prefix_caching=False,
        device="cpu",
    )
    together, crowd_rate = generate(llm, prompts, num_tokens)
    alone, alone_rates = [], []
    for prompt in prompts:
        (answer,), rate = generate(llm, [prompt], num_tokens)
        alone.append(answer)
        alone_rates.append(rate)
    num_same = sum(a == b for a, b in zip(together, alone, strict=True))
    alone_rate = sum(alone_rates) / len(alone_rates)
    print(
        f"{dtype:10} {'deterministic' if is_deterministic else 'default':14}"
        f"{num_same:>4} of {len(prompts):<4}{crowd_rate:>12.1f}{alone_rate:>12.1f}",
        flush=True,
    )


def main(num_prompts: int = 32, num_tokens: int = 64, num_threads: int = 2) -> None:
    """Print the table."""
    torch.set_num_threads(num_threads)
    prompts = list(islice(PROMPTS, num_prompts))
    print(f"{num_tokens} tokens; same alone as in the crowd; tokens/s in the crowd and alone")
    for dtype in ("bfloat16", "float32"):
        for is_deterministic in (False, True):
            compare(dtype, is_deterministic, prompts, num_tokens)


if __name__ == "__main__":
    with torch.inference_mode():
        main(*map(int, sys.argv[1:]))
