"""Draws follow the exact probabilities, row by row, whatever the neighbours ask for."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from nanoserve.runner.sampler import sample
from nanoserve.sched.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
NUM_DRAWS = 2000
EVEN_UNIFORMS = [(index + 0.5) / NUM_DRAWS for index in range(NUM_DRAWS)]


def random_logits(num_rows: int, vocab_size: int = 50, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * 2


def shares(row: Tensor, params: SamplingParams) -> dict[int, float]:
    """Return how often each token is drawn over evenly spaced uniforms."""
    logits = row.expand(NUM_DRAWS, -1)
    drawn = sample(logits, [params] * NUM_DRAWS, EVEN_UNIFORMS).token_ids
    return {token: count / NUM_DRAWS for token, count in Counter(drawn).items()}


def exact_probabilities(row: Tensor, params: SamplingParams) -> dict[int, float]:
    """Filter one row the slow way: temperature, top-k, top-p, min-p, in that order."""
    probabilities = (row.double() / params.temperature).softmax(0).tolist()
    ranked = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    if params.top_k:
        ranked = ranked[: params.top_k]
    total, reached, kept = sum(probabilities[token] for token in ranked), 0.0, []
    for token in ranked:
        if reached < params.top_p * total:
            kept.append(token)
        reached += probabilities[token]
    peak = probabilities[ranked[0]]
    kept = [token for token in kept if probabilities[token] >= params.min_p * peak]
    kept_total = sum(probabilities[token] for token in kept)
    return {token: probabilities[token] / kept_total for token in kept}


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.4),
        SamplingParams(temperature=2.0),
        SamplingParams(top_k=2),
        SamplingParams(top_k=7),
        SamplingParams(top_k=500),
        SamplingParams(top_p=0.6),
        SamplingParams(top_p=0.97),
        SamplingParams(min_p=0.2),
        SamplingParams(top_k=9, top_p=0.7),
        SamplingParams(temperature=1.5, top_k=20, top_p=0.9, min_p=0.05),
    ],
)
def test_draws_follow_the_filtered_probabilities(params: SamplingParams) -> None:
    """Evenly spaced uniforms hit each token in its exact share, and no other token."""
    (row,) = random_logits(1)
    expected = exact_probabilities(row, params)

    found = shares(row, params)

    assert found.keys() <= expected.keys()
    for token, probability in expected.items():
        assert found.get(token, 0.0) == pytest.approx(probability, abs=1.5 / NUM_DRAWS)


def test_top_p_reaches_past_the_ranked_candidates() -> None:
    """On a flat distribution top-p keeps its share of a large vocabulary."""
    row = random_logits(1, vocab_size=5000)[0] * 0.01
    uniforms = [0.0, 0.3, 0.7, 1 - 2**-52]
    ranked = row.argsort(descending=True).tolist()

    drawn = sample(row.expand(4, -1), [SamplingParams(top_p=0.8)] * 4, uniforms).token_ids

    ranks = [ranked.index(token) for token in drawn]
    assert ranks[0] == 0
    assert ranks == sorted(ranks)
    assert 3900 < ranks[3] < 4000


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
    """Where one token is left, it is the argmax, for any uniform and any scale of logits."""
    logits = torch.cat([random_logits(20), random_logits(20, seed=1) * 1e4])
    uniforms = [index / 40 for index in range(40)]

    drawn = sample(logits, [params] * 40, uniforms)

    assert drawn.token_ids == logits.argmax(-1).tolist()
    assert drawn.broken_rows == []


def test_greedy_ties_go_to_the_lowest_id() -> None:
    """Equal logits are decided by the token id."""
    logits = torch.zeros(1, 8)

    assert sample(logits, [GREEDY], [0.9]).token_ids == [0]


def test_a_row_is_drawn_the_same_alone_and_in_a_crowd() -> None:
    """Neighbours with other parameters change no row's token, and neither does their order."""
    kinds = [
        GREEDY,
        SamplingParams(),
        SamplingParams(top_k=5),
        SamplingParams(top_k=33, top_p=0.9),
        SamplingParams(top_p=0.5),
        SamplingParams(top_p=0.999, temperature=2.0),
        SamplingParams(min_p=0.1, temperature=0.7),
    ]
    params = kinds * 6
    logits = random_logits(len(params), vocab_size=3000)
    uniforms = [(7 * row % len(params)) / len(params) for row in range(len(params))]

    crowd = sample(logits, params, uniforms).token_ids
    backwards = sample(logits.flip(0), params[::-1], uniforms[::-1]).token_ids[::-1]
    alone = [
        sample(logits[row : row + 1], params[row : row + 1], uniforms[row : row + 1]).token_ids[0]
        for row in range(len(params))
    ]

    assert crowd == alone
    assert backwards == alone


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_p=0.9)])
def test_a_broken_row_is_named_and_harms_no_other(bad: float, params: SamplingParams) -> None:
    """A row with NaN or infinity is reported; its neighbours keep their tokens."""
    logits = random_logits(3)
    uniforms = [0.2, 0.5, 0.8]
    expected = sample(logits, [params] * 3, uniforms).token_ids
    logits[1, 17] = bad

    drawn = sample(logits, [params] * 3, uniforms)

    assert drawn.broken_rows == [1]
    assert (drawn.token_ids[0], drawn.token_ids[2]) == (expected[0], expected[2])


def test_tokens_at_minus_infinity_are_never_drawn() -> None:
    """A forbidden token has probability 0, at either end of the vocabulary too."""
    logits = torch.zeros(2, 6)
    logits[:, [0, 3, 5]] = float("-inf")

    drawn = sample(logits, [SamplingParams()] * 2, [0.0, 1 - 2**-52])

    assert drawn.token_ids == [1, 4]
    assert drawn.broken_rows == []
