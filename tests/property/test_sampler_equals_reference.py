"""The sampler draws what the slow reference draws, whatever the batch around a row."""

import math
from random import Random

import torch
from hypothesis import event, given
from hypothesis import strategies as st

from nanoserve.runner.sampler import Sampler
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest
from nanoserve.sched.token_history import TokenHistory
from tests.sampling_reference import ReferenceSampler, drawing

MIN_MARGIN = 1e-4  # closer decisions may fall otherwise in float32
STEPS = [-math.inf] * 4 + [step / 4 for step in range(-40, 41)]  # a coarse grid: many ties


def random_row(seed: int, vocab_size: int) -> list[float]:
    return [0.5, *Random(seed).choices(STEPS, k=vocab_size - 1)]


@st.composite
def samplings(draw: st.DrawFn, vocab_size: int) -> SamplingParams:
    token_ids = st.integers(0, vocab_size - 1)
    biases = st.dictionaries(token_ids, st.sampled_from([-100.0, -3.0, 2.5, 100.0]), max_size=3)
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.01])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 5, 70, 300])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.03, 0.4])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 0.7, 1.3])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.3, -0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.9])),
        logit_bias=tuple(draw(st.one_of(st.just({}), biases)).items()),
        num_logprobs=draw(st.sampled_from([None, 0, 3])),
    )


@st.composite
def requests(draw: st.DrawFn, vocab_size: int, request_id: str) -> ScheduledRequest:
    token_ids = st.integers(0, vocab_size - 1)
    sampling = draw(samplings(vocab_size))
    tokens = draw(st.lists(token_ids, min_size=1, max_size=12))
    history = TokenHistory(tokens, draw(st.integers(1, len(tokens))))
    masks = st.binary(min_size=0, max_size=vocab_size // 8 + 2)
    return drawing(
        sampling,
        request_id=request_id,
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        position=draw(st.integers(1, 5000)),
        history=history if sampling.has_penalties else None,
        banned_token_ids=tuple(draw(st.one_of(st.just([]), st.lists(token_ids, max_size=3)))),
        allowed_tokens=draw(st.one_of(st.none(), st.none(), masks)),
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], list[ScheduledRequest]]:
    vocab_size = draw(st.sampled_from([1, 2, 7, 63, 64, 65, 200]))
    num_rows = draw(st.integers(1, 4))
    logits = [random_row(draw(st.integers(0, 2**32)), vocab_size) for _ in range(num_rows)]
    return logits, [draw(requests(vocab_size, str(index))) for index in range(num_rows)]


@given(batches())
def test_a_batch_is_drawn_as_the_reference_draws_each_row(
    batch: tuple[list[list[float]], list[ScheduledRequest]],
) -> None:
    """Same token in float64, one row at a time; a request with none left fails by name."""
    logits, scheduled = batch

    sampled = Sampler().sample(torch.tensor(logits), scheduled)

    for row, request in enumerate(scheduled):
        reference = ReferenceSampler(logits[row], request)
        expected = reference.sample()
        assert (sampled.token_ids[row] is None) == (expected is None)
        assert (request.request_id in sampled.failed) == (expected is None)
        if reference.margin > MIN_MARGIN:
            event("compared")
            assert sampled.token_ids[row] == expected


@given(batches())
def test_a_row_is_drawn_the_same_alone_and_in_a_crowd(
    batch: tuple[list[list[float]], list[ScheduledRequest]],
) -> None:
    """Token, log-probabilities and failure are the row's own, bit for bit."""
    logits, scheduled = batch

    crowd = Sampler().sample(torch.tensor(logits), scheduled)

    for row, request in enumerate(scheduled):
        alone = Sampler().sample(torch.tensor(logits[row : row + 1]), [request])
        assert alone.token_ids == crowd.token_ids[row : row + 1]
        assert alone.failed.get(request.request_id) == crowd.failed.get(request.request_id)
        assert alone.logprobs.get(request.request_id) == crowd.logprobs.get(request.request_id)
