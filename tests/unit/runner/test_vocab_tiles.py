"""`vocab_tiles`: ranking by tile maxima is ranking the row."""

import pytest
import torch

from nanoserve.runner.vocab_tiles import argmax_ids, to_tiles, top_ids


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 128, 1000])
def test_a_row_is_cut_into_tiles_of_64(vocab_size: int) -> None:
    """Tiles hold the row in order; what fills the last one up is never drawn."""
    logits = torch.randn(3, vocab_size)

    flat = to_tiles(logits).flatten(1)

    assert torch.equal(flat[:, :vocab_size], logits)
    assert flat.shape[-1] % 64 == 0
    assert bool((flat[:, vocab_size:] == float("-inf")).all())


def test_whole_tiles_are_not_copied() -> None:
    """A vocabulary of whole tiles is looked at in place."""
    logits = torch.randn(3, 128)

    assert to_tiles(logits).data_ptr() == logits.data_ptr()


@pytest.mark.parametrize("vocab_size", [5, 64, 200, 3000])
@pytest.mark.parametrize("count", [1, 4, 5])
def test_the_largest_come_first_and_ties_by_id(vocab_size: int, count: int) -> None:
    """Over a coarse grid with many ties, the ids are those of a stable sort."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randint(-4, 5, (50, vocab_size), generator=generator) / 4.0
    logits[::2] -= 3.0  # all negative
    tiles = to_tiles(logits)
    maxima = tiles.amax(dim=-1)

    expected = logits.sort(dim=-1, descending=True, stable=True).indices[:, :count]

    assert torch.equal(top_ids(tiles, maxima, count), expected)
    assert torch.equal(argmax_ids(tiles, maxima), expected[:, 0])


def test_both_zeros_are_one_number() -> None:
    """-0.0 and 0.0 tie, and the id decides."""
    tiles = to_tiles(torch.tensor([[-0.0, 0.0, -1.0]]))

    assert top_ids(tiles, tiles.amax(dim=-1), 3).tolist() == [[0, 1, 2]]


def test_tokens_at_minus_infinity_rank_last() -> None:
    """What can never be drawn is still an id of the row."""
    tiles = to_tiles(torch.tensor([[float("-inf"), -1e30, 2.0]]))

    assert top_ids(tiles, tiles.amax(dim=-1), 3).tolist() == [[2, 1, 0]]
