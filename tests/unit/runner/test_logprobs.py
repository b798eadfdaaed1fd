"""`logprobs`: the log-softmax of raw logits, finite, with ranked alternatives."""

import math

import pytest
import torch

from nanoserve.runner.logprobs import LOWEST_LOGPROB, token_logprobs
from nanoserve.sched.step import TokenLogprobs


@pytest.mark.parametrize("vocab_size", [50, 64, 4000])
def test_logprobs_are_the_log_softmax(vocab_size: int) -> None:
    """The token's and each alternative's log-probability, likeliest first."""
    logits = torch.randn(20, vocab_size, generator=torch.Generator().manual_seed(0)) * 4
    token_ids = torch.arange(20)
    expected = logits.double().log_softmax(dim=-1)
    ranked = expected.sort(dim=-1, descending=True)

    found = token_logprobs(logits, token_ids, [5] * 20)

    for row, named in enumerate(found):
        assert named is not None
        assert named.token_id == row
        assert named.logprob == pytest.approx(float(expected[row, row]), abs=2e-5)
        assert [token_id for token_id, _ in named.top] == ranked.indices[row, :5].tolist()
        scores = [score for _, score in named.top]
        assert scores == pytest.approx(ranked.values[row, :5].tolist(), abs=2e-5)


def test_each_row_names_as_many_as_it_asked_for() -> None:
    """Neighbours that ask for more do not change a row; nobody gets more than there are."""
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(3, -1)

    found = token_logprobs(logits, torch.tensor([0, 1, 2]), [0, 2, 20])

    assert [len(named.top) for named in found if named] == [0, 2, 3]
    (alone,) = token_logprobs(logits[1:2], torch.tensor([1]), [2])
    assert found[1] == alone


def test_equal_alternatives_are_ranked_by_id() -> None:
    """Ties are broken by the id, within a tile and across tiles."""
    (named,) = token_logprobs(torch.zeros(1, 200), torch.tensor([150]), [4])

    assert named is not None
    assert [token_id for token_id, _ in named.top] == [0, 1, 2, 3]


def test_every_number_is_finite() -> None:
    """What cannot be drawn stands at the floor, and certainty at exactly 0."""
    logits = torch.full((1, 70), float("-inf"))
    logits[0, 3] = 5.0
    logits[0, 4] = -1e30

    (named,) = token_logprobs(logits, torch.tensor([60]), [3])

    assert named == TokenLogprobs(
        60, LOWEST_LOGPROB, ((3, 0.0), (4, LOWEST_LOGPROB), (0, LOWEST_LOGPROB))
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_has_none_and_harms_no_other(bad: float) -> None:
    """NaN or infinity in a row is its own trouble."""
    logits = torch.randn(3, 100)
    clean = token_logprobs(logits, torch.tensor([0, 1, 2]), [2, 2, 2])
    logits[1, 99] = bad

    found = token_logprobs(logits, torch.tensor([0, 1, 2]), [2, 2, 2])

    assert found == [clean[0], None, clean[2]]
