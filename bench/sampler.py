"""How long a batch takes to sample: `python bench/sampler.py [rows] [vocabulary]`.

Prints the median of 50 calls for each case, on logits that are flat (standard normal: the
hard case) and on peaked ones. Lets a request's history grow by a token a call, as in serving.
"""

import statistics
import sys
import time

import torch

from nanoserve.runner.sampler import Sampler
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest
from nanoserve.sched.token_history import TokenHistory

NUM_CALLS = 50
NUM_THREADS = 2
PROMPT_LEN = 500

CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top-k 40": SamplingParams(top_k=40),
    "top-k 2000": SamplingParams(top_k=2000),
    "top-p 0.9": SamplingParams(top_p=0.9),
    "top-p 0.1": SamplingParams(top_p=0.1),
    "min-p 0.05": SamplingParams(min_p=0.05),
    "top-k 40, top-p 0.9": SamplingParams(top_k=40, top_p=0.9),
    "penalties": SamplingParams(
        temperature=0.0, repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.1
    ),
    "greedy, 5 logprobs": SamplingParams(temperature=0.0, num_logprobs=5),
    "all but top-k": SamplingParams(
        temperature=0.8,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.1,
        num_logprobs=5,
    ),
}


def make_logits(num_rows: int, vocab_size: int) -> dict[str, torch.Tensor]:
    """Return flat and peaked logits, float32 [rows, vocabulary]."""
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(num_rows, vocab_size, generator=generator)
    ranks = torch.rand(num_rows, vocab_size, generator=generator).argsort(dim=-1)
    return {"flat": flat, "peaked": flat - 2.0 * (ranks + 1.0).log()}


def time_case(logits: torch.Tensor, sampling: SamplingParams) -> float:
    """Return the median milliseconds of a call."""
    num_rows, vocab_size = logits.shape
    sampler = Sampler()
    tokens = [torch.randint(0, vocab_size, (PROMPT_LEN,)).tolist() for _ in range(num_rows)]
    samples_ms = []
    for _ in range(NUM_CALLS):
        scheduled = [
            ScheduledRequest(
                request_id=str(row),
                token_ids=tuple(history[-1:]),
                num_computed_tokens=len(history) - 1,
                block_table=(),
                sampling=sampling,
                seed=row,
                samples=True,
                history=TokenHistory(history, PROMPT_LEN),
            )
            for row, history in enumerate(tokens)
        ]
        start_s = time.perf_counter()
        sampled = sampler.sample(logits, scheduled)
        samples_ms.append((time.perf_counter() - start_s) * 1e3)
        for history, token_id in zip(tokens, sampled.token_ids, strict=True):
            history.append(token_id)
    return statistics.median(samples_ms)


def main(num_rows: int = 32, vocab_size: int = 49_152) -> None:
    """Print the table."""
    torch.set_num_threads(NUM_THREADS)
    torch.manual_seed(0)
    logits = make_logits(num_rows, vocab_size)
    print(f"{num_rows} rows of {vocab_size:,}, {NUM_THREADS} threads, median of {NUM_CALLS}, ms")
    print(f"{'':22}" + "".join(f"{name:>10}" for name in logits))
    for name, sampling in CASES.items():
        times_ms = [time_case(rows, sampling) for rows in logits.values()]
        print(f"{name:22}" + "".join(f"{time_ms:10.2f}" for time_ms in times_ms))


if __name__ == "__main__":
    with torch.inference_mode():
        main(*map(int, sys.argv[1:]))
