"""`nucleus`: draws follow the exact filtered distribution, flat or peaked, small or large."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from nanoserve.runner.noise import stream_keys
from nanoserve.runner.nucleus import draw
from nanoserve.runner.sampling_table import build_table
from nanoserve.runner.vocab_tiles import to_tiles
from nanoserve.sched.sampling_params import SamplingParams
from tests.sampling_reference import ReferenceSampler, drawing

CPU = torch.device("cpu")


def random_logits(num_rows: int, vocab_size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator)


def drawn_ids(logits: Tensor, params: list[SamplingParams], seeds: list[int]) -> Tensor:
    """Draw from the softmax of `logits`, at position 9."""
    weights = to_tiles(logits).flatten(1).softmax(dim=-1)
    filters = build_table(params, logits.shape[-1], CPU).filters
    keys = stream_keys(seeds, [9] * len(seeds), CPU)
    likeliest = weights.argmax(dim=-1, keepdim=True)
    return draw(weights, likeliest, filters, keys, torch.empty_like(weights))


def many_draws(row: Tensor, sampling: SamplingParams, num_draws: int, at_once: int) -> Tensor:
    logits = row.expand(at_once, -1)
    batches = [
        drawn_ids(logits, [sampling] * at_once, list(range(first, first + at_once)))
        for first in range(0, num_draws, at_once)
    ]
    return torch.cat(batches)


def deviations(counts: list[float], expected: list[float]) -> float:
    """Return chi-square over its mean, in standard deviations."""
    statistic = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    degrees = max(len(expected) - 1, 1)
    return (statistic - degrees) / math.sqrt(2 * degrees)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(top_k=2),
        SamplingParams(top_k=77),
        SamplingParams(top_k=500),
        SamplingParams(top_p=0.3),
        SamplingParams(top_p=0.97),
        SamplingParams(min_p=0.2),
        SamplingParams(top_k=9, top_p=0.7),
        SamplingParams(top_k=90, top_p=0.9, min_p=0.05),
    ],
)
def test_draws_follow_the_filtered_probabilities(sampling: SamplingParams) -> None:
    """Over many seeds each token that is kept comes in its share, and no other comes."""
    num_draws = 20_000
    row = random_logits(1, 150)[0] * 1.5
    reference = ReferenceSampler(row.tolist(), drawing(sampling))
    kept = reference.kept(reference.weights())
    total = sum(kept.values())

    counts = Counter(many_draws(row, sampling, num_draws, 5000).tolist())

    assert counts.keys() <= kept.keys()
    expected = {t: num_draws * w / total for t, w in kept.items() if num_draws * w / total > 5}
    assert deviations([counts[t] for t in expected], list(expected.values())) < 5


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0], ids=["flat", "normal", "peaked"])
def test_draws_follow_the_softmax_of_a_large_vocabulary(scale: float) -> None:
    """49,152 tokens, binned by likelihood."""
    num_draws, num_bins = 1024, 16
    row = random_logits(1, 49_152)[0] * scale
    ranked = row.double().softmax(0).sort(descending=True)
    bin_of_rank = (ranked.values.cumsum(0) * num_bins).long().clamp(max=num_bins - 1)
    bin_of = torch.empty_like(bin_of_rank)
    bin_of[ranked.indices] = bin_of_rank
    expected = torch.zeros(num_bins, dtype=torch.float64)
    expected.index_add_(0, bin_of_rank, ranked.values * num_draws)

    drawn = many_draws(row, SamplingParams(), num_draws, 32)

    counts = bin_of[drawn].bincount(minlength=num_bins)
    occupied = expected > 0
    assert deviations(counts[occupied].tolist(), expected[occupied].tolist()) < 5


@pytest.mark.parametrize("top_p", [0.9, 0.2])
def test_the_nucleus_of_a_flat_row_is_exact(top_p: float) -> None:
    """No draw from thousands of nearly equal tokens is outside, and the last rank is reached."""
    row = random_logits(1, 5000)[0] * 0.1
    ranked = row.double().softmax(0).sort(descending=True)
    num_kept = int((ranked.values.cumsum(0) < top_p).sum()) + 1
    rank_of = ranked.indices.argsort()

    ranks = rank_of[many_draws(row, SamplingParams(top_p=top_p), 4096, 512)]

    assert int(ranks.max()) < num_kept
    assert int(ranks.max()) > 0.99 * num_kept
    assert float(ranks.double().mean()) / num_kept == pytest.approx(0.5, abs=0.03)


def test_top_k_beyond_the_tiles_is_exact() -> None:
    """A top-k larger than the number of tiles keeps as many tokens."""
    row = random_logits(1, 640)[0] * 0.1
    rank_of = row.argsort(descending=True).argsort()

    ranks = rank_of[many_draws(row, SamplingParams(top_k=300), 4096, 512)]

    assert sorted(set(ranks.tolist())) == list(range(300))


def test_tokens_that_weigh_the_same_as_the_last_one_stay_in() -> None:
    """No filter decides between equals."""
    row = torch.tensor([1.0, 0.0, 0.0, 0.0, -1.0])

    for sampling in (SamplingParams(top_k=2), SamplingParams(top_p=0.5), SamplingParams(min_p=0.3)):
        drawn = many_draws(row, sampling, 500, 500)
        assert set(drawn.tolist()) == {0, 1, 2, 3}


def test_a_perturbation_changes_next_to_no_draw() -> None:
    """Noise of 1e-6 on 10,000 flat rows, as from another batch size, moves a draw or two."""
    logits = random_logits(10_000, 640) * 0.3
    noisy = logits + random_logits(10_000, 640, seed=1) * 1e-6
    kinds = [SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(min_p=0.3)]
    params = [kinds[row % 3] for row in range(10_000)]
    seeds = list(range(10_000))

    changed = drawn_ids(logits, params, seeds) != drawn_ids(noisy, params, seeds)

    assert int(changed.sum()) <= 3


def test_a_row_is_drawn_the_same_alone_and_in_a_crowd() -> None:
    """With 3,000 tokens too, neighbours with other filters change no row, in any order."""
    kinds = [
        SamplingParams(),
        SamplingParams(top_k=5),
        SamplingParams(top_k=33, top_p=0.9),
        SamplingParams(top_k=1000),
        SamplingParams(top_p=0.5),
        SamplingParams(top_p=0.05),
        SamplingParams(min_p=0.1),
    ]
    params = kinds * 6
    seeds = list(range(len(params)))
    logits = random_logits(len(params), 3000)

    crowd = drawn_ids(logits, params, seeds).tolist()
    backwards = drawn_ids(logits.flip(0), params[::-1], seeds[::-1]).tolist()[::-1]
    alone = [
        int(drawn_ids(logits[row : row + 1], [params[row]], [seeds[row]])) for row in range(42)
    ]

    assert crowd == alone
    assert backwards == alone


def test_a_row_of_nan_ends() -> None:
    """A broken row gets some token; drawing does not go on for ever."""
    logits = random_logits(2, 100)
    logits[1, 5] = math.nan
    params = [SamplingParams(top_p=0.5, top_k=20, min_p=0.1)] * 2

    drawn = drawn_ids(logits, params, [1, 2])

    assert int(drawn[0]) == int(drawn_ids(logits[:1], params[:1], [1]))
