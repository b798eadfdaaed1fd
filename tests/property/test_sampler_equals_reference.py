"""The sampler draws what the slow reference draws, whatever the batch around a row."""

import math
from random import Random
from typing import Any

import torch
from hypothesis import event, given
from hypothesis import strategies as st

from nanoserve.runner.sampler import Sampler
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest
from nanoserve.sched.token_history import TokenHistory
from tests.sampling_reference import ReferenceSampler, drawing

NUM_ROWS = 8
MIN_MARGIN = 1e-4  # closer decisions may fall otherwise in float32
LOGITS = [-math.inf] * 4 + [step / 4 for step in range(-24, 25)]  # a coarse grid: many ties

# A batch is made from one number: rows need variety more than they need shrinking.
SEEDS = st.integers(0, 2**64)


def random_sampling(random: Random, vocab_size: int) -> SamplingParams:
    penalties: dict[str, Any] = {
        "repetition_penalty": random.choice([0.7, 1.3]),
        "frequency_penalty": random.choice([0.0, 0.3, -0.8]),
        "presence_penalty": random.choice([0.0, 0.9]),
    }
    biases = {random.randrange(vocab_size): random.choice([-100.0, -3.0, 2.5, 100.0])}
    return SamplingParams(
        temperature=random.choice([0.0, 0.3, 1.0, 1.5, 2.0]),
        top_p=random.choice([1.0, 0.95, 0.8, 0.5, 0.01]),
        top_k=random.choice([0, 0, 0, 1, 2, 5, 20, 70, 300]),
        min_p=random.choice([0.0, 0.0, 0.03, 0.4]),
        logit_bias=tuple(biases.items()) if random.random() < 0.2 else (),
        num_logprobs=random.choice([None, 0, 3]),
        **(penalties if random.random() < 0.3 else {}),
    )


def random_request(random: Random, vocab_size: int, request_id: str) -> ScheduledRequest:
    sampling = random_sampling(random, vocab_size)
    tokens = random.choices(range(vocab_size), k=random.randint(1, 12))
    history = TokenHistory(tokens, random.randint(1, len(tokens)))
    mask = random.randbytes(random.randint(0, vocab_size // 8 + 2))
    return drawing(
        sampling,
        request_id=request_id,
        seed=random.randint(-(2**63), 2**63 - 1),
        position=random.randint(1, 5000),
        history=history if sampling.has_penalties else None,
        banned_token_ids=tuple(tokens[:3]) if random.random() < 0.2 else (),
        allowed_tokens=mask if random.random() < 0.2 else None,
    )


def random_batch(seed: int) -> tuple[list[list[float]], list[ScheduledRequest]]:
    random = Random(seed)
    vocab_size = random.choice([1, 2, 7, 63, 64, 65, 200, 500])
    logits = [[0.5, *random.choices(LOGITS, k=vocab_size - 1)] for _ in range(NUM_ROWS)]
    return logits, [random_request(random, vocab_size, str(row)) for row in range(NUM_ROWS)]


@given(SEEDS)
def test_a_batch_is_drawn_as_the_reference_draws_each_row(seed: int) -> None:
    """Same token in float64, one row at a time; a request with none left fails by name."""
    logits, scheduled = random_batch(seed)

    sampled = Sampler().sample(torch.tensor(logits), scheduled)

    for row, request in enumerate(scheduled):
        reference = ReferenceSampler(logits[row], request)
        expected = reference.sample()
        assert (sampled.token_ids[row] is None) == (expected is None)
        assert (request.request_id in sampled.failed) == (expected is None)
        if reference.margin > MIN_MARGIN:
            event("compared")
            assert sampled.token_ids[row] == expected


@given(SEEDS)
def test_a_row_is_drawn_the_same_alone_and_in_a_crowd(seed: int) -> None:
    """Token, log-probabilities and failure are the row's own, bit for bit."""
    logits, scheduled = random_batch(seed)

    crowd = Sampler().sample(torch.tensor(logits), scheduled)

    for row, request in enumerate(scheduled):
        alone = Sampler().sample(torch.tensor(logits[row : row + 1]), [request])
        assert alone.token_ids == crowd.token_ids[row : row + 1]
        assert alone.failed.get(request.request_id) == crowd.failed.get(request.request_id)
        assert alone.logprobs.get(request.request_id) == crowd.logprobs.get(request.request_id)
