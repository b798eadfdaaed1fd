"""`Sampler`: the order of operations, exact argmax, failures by name, and no memory."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nanoserve.runner.native_row_max import NativeRowMax
from nanoserve.runner.sampler import NOT_FINITE, NOTHING_LEFT, Sampler
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest
from nanoserve.sched.token_history import TokenHistory
from tests.native_kernels import native_kernels, needs_kernels
from tests.sampling_reference import drawing

GREEDY = SamplingParams(temperature=0.0)
RANDOM = SamplingParams(temperature=0.8, top_p=0.9, min_p=0.01)


def random_logits(num_rows: int, vocab_size: int = 50, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * 2


def batch_of(*params: SamplingParams, position: int = 3) -> list[ScheduledRequest]:
    return [
        drawing(sampling, request_id=str(row), seed=row, position=position)
        for row, sampling in enumerate(params)
    ]


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=1e-6),
        SamplingParams(temperature=1e-300),
        SamplingParams(temperature=2e-5),
        SamplingParams(top_p=1e-9),
        SamplingParams(top_k=1),
        SamplingParams(min_p=1.0),
        SamplingParams(temperature=2.0, top_k=40, top_p=1e-9),
    ],
)
def test_extreme_parameters_are_argmax(params: SamplingParams) -> None:
    """Where one token is left, it is the argmax, for any seed and any scale of logits."""
    logits = torch.cat([random_logits(20), random_logits(20, seed=1) * 1e4])

    sampled = Sampler().sample(logits, batch_of(*[params] * 40))

    assert list(sampled.token_ids) == logits.argmax(-1).tolist()
    assert sampled.failed == {}


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(top_k=1)])
def test_greedy_ties_go_to_the_lowest_id(sampling: SamplingParams) -> None:
    """Equal logits are decided by the token id, in a tile and across tiles."""
    logits = torch.zeros(2, 200)
    logits[1, [130, 70, 199]] = 1.0

    assert Sampler().sample(logits, batch_of(sampling, sampling)).token_ids == (0, 70)


def test_logits_are_left_alone() -> None:
    """A batch with every edit there is does not write into its input."""
    sampling = SamplingParams(
        repetition_penalty=2.0, logit_bias=((1, 100.0), (2, -100.0)), num_logprobs=3, top_p=0.5
    )
    request = drawing(
        sampling,
        history=TokenHistory([1, 2], 1),
        banned_token_ids=(4,),
        allowed_tokens=b"\xff" * 8,
    )
    logits = random_logits(1, 64)
    before = logits.clone()

    Sampler().sample(logits, [request])

    assert torch.equal(logits, before)


def test_logprobs_are_of_the_raw_logits() -> None:
    """Temperature, penalties, biases and bans change the draw and not what is reported."""
    logits = random_logits(1, 70)
    raw = logits[0].double().log_softmax(0)
    likeliest = int(raw.argmax())
    sampling = SamplingParams(
        temperature=2.0, top_k=2, logit_bias=((7, 100.0), (likeliest, -100.0)), num_logprobs=2
    )

    sampled = Sampler().sample(logits, [drawing(sampling)])

    assert sampled.token_ids == (7,)
    named = sampled.logprobs["a"]
    assert named.token_id == 7
    assert named.logprob == pytest.approx(float(raw[7]), abs=1e-5)
    assert [token_id for token_id, _ in named.top] == raw.topk(2).indices.tolist()
    assert named.top[0][1] == pytest.approx(float(raw[likeliest]), abs=1e-5)


def test_only_who_asks_gets_logprobs() -> None:
    """Log-probabilities are keyed by request, for greedy and drawn rows alike."""
    params = [GREEDY, SamplingParams(temperature=0.0, num_logprobs=0), RANDOM]
    params.append(SamplingParams(num_logprobs=4))

    sampled = Sampler().sample(random_logits(4), batch_of(*params))

    assert sampled.logprobs.keys() == {"1", "3"}
    assert sampled.logprobs["3"].token_id == sampled.token_ids[3]
    assert len(sampled.logprobs["3"].top) == 4


def test_a_forced_token_is_drawn_and_a_banned_one_never() -> None:
    """A bias of 100 wins against any logit, a ban loses even if nothing else is likely."""
    logits = torch.zeros(2, 80)
    logits[:, 3] = 500.0
    forced = SamplingParams(logit_bias=((70, 100.0),))
    banned = SamplingParams(logit_bias=((3, -100.0),))

    for position in range(1, 30):
        sampled = Sampler().sample(logits, batch_of(forced, banned, position=position))
        assert sampled.token_ids[0] == 70
        assert sampled.token_ids[1] != 3


def test_a_grammar_outranks_a_forcing_bias() -> None:
    """If what is forced is not allowed, one of the allowed tokens is drawn."""
    request = drawing(SamplingParams(logit_bias=((5, 100.0),)), allowed_tokens=b"\x06")

    (token_id,) = Sampler().sample(torch.zeros(1, 30), [request]).token_ids

    assert token_id in (1, 2)


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM])
def test_a_request_without_a_token_left_fails_by_name(sampling: SamplingParams) -> None:
    """An empty grammar is that request's problem; its neighbours keep their tokens."""
    logits = random_logits(3)
    scheduled = batch_of(sampling, sampling, sampling)
    expected = Sampler().sample(logits, scheduled).token_ids
    scheduled[1] = drawing(sampling, request_id="1", allowed_tokens=b"")

    sampled = Sampler().sample(logits, scheduled)

    assert sampled.failed == {"1": NOTHING_LEFT}
    assert sampled.token_ids == (expected[0], None, expected[2])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(top_p=0.9, num_logprobs=1)])
def test_a_broken_row_fails_by_name_and_harms_no_other(bad: float, params: SamplingParams) -> None:
    """NaN or infinity fails its request, also where it is edited away; nobody else's."""
    logits = random_logits(3)
    scheduled = batch_of(params, params, params)
    expected = Sampler().sample(logits, scheduled)
    logits[1, 17] = bad
    scheduled[1] = drawing(params, request_id="1", banned_token_ids=(17,))

    sampled = Sampler().sample(logits, scheduled)

    assert sampled.failed == {"1": NOT_FINITE}
    assert sampled.token_ids == (expected.token_ids[0], None, expected.token_ids[2])
    assert sampled.logprobs == {k: v for k, v in expected.logprobs.items() if k != "1"}


def test_tokens_at_minus_infinity_are_never_drawn() -> None:
    """A forbidden token has probability 0, at either end of the vocabulary too."""
    logits = torch.zeros(200, 6)
    logits[:, [0, 3, 5]] = -math.inf

    sampled = Sampler().sample(logits, batch_of(*[SamplingParams()] * 200))

    assert set(sampled.token_ids) == {1, 2, 4}
    assert sampled.failed == {}


def test_what_is_kept_between_calls_changes_no_token() -> None:
    """Batches that grow, shrink and change their parameters draw as from a new sampler."""
    sampler = Sampler()
    penalised = SamplingParams(repetition_penalty=1.2, temperature=0.9)
    tokens = [1, 2, 3]
    for position, kinds in enumerate(
        [(GREEDY,), (RANDOM, GREEDY), (RANDOM, GREEDY), (GREEDY,), (penalised,) * 3, (RANDOM,)], 4
    ):
        logits = random_logits(len(kinds), seed=position)
        scheduled = [
            drawing(
                sampling,
                request_id=str(row),
                position=position,
                history=TokenHistory(tokens, 2) if sampling is penalised else None,
            )
            for row, sampling in enumerate(kinds)
        ]
        tokens.append(position)

        assert sampler.sample(logits, scheduled) == Sampler().sample(logits, scheduled)


@needs_kernels
def test_native_maxima_draw_what_torch_s_draw() -> None:
    """Greedy batches, with ties and rows that are broken; any other batch does without them."""
    native = Sampler(NativeRowMax(native_kernels()))
    logits = torch.cat([random_logits(20, 203), random_logits(20, 203).round()])
    logits[3, 150], logits[5, 202], logits[7] = float("nan"), float("inf"), float("-inf")
    logits[9, [2, 202]] = 100.0
    mixed = [GREEDY, RANDOM, SamplingParams(temperature=0.0, num_logprobs=2)]

    for params in ([GREEDY] * 40, [mixed[row % 3] for row in range(40)]):
        batch = batch_of(*params)
        assert native.sample(logits, batch) == Sampler().sample(logits, batch)
    constrained = [replace(request, banned_token_ids=(2,)) for request in batch_of(*[GREEDY] * 40)]
    assert native.sample(logits, constrained) == Sampler().sample(logits, constrained)
    assert native.sample(logits, constrained).token_ids[9] == 202
