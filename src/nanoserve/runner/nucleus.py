"""Which tokens may be drawn, and the draw: top-k, top-p, min-p without ranking a row.

All three filters keep the tokens that weigh at least so much. What weighs the same as
the last token kept is kept too, so no filter depends on an order among equals.

Top-p needs no threshold: whether one token is in the nucleus is a single sum, of what
weighs more. A token is drawn from the others; if it is outside, only what weighs more than
it can be inside, and the next is drawn from that. The last token drawn has the exact
distribution of the nucleus. (Rejection with a rising pivot, as in FlashInfer's kernels.)

A draw is the Gumbel-max trick as a race, twice: first among tiles of tokens by their sums,
then inside the tile that won. Each runs with probability weight / total, as the least of
exponential times divided by weights does (Efraimidis and Spirakis, 2006). A logit that
moves by 1e-6 changes a draw about once in a million, however flat the row.
"""

from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nanoserve.runner.noise import exponential
from nanoserve.runner.vocab_tiles import TILE_LEN, pick

_ROUND_STRIDE = 1 << 32  # indices of noise for each round: more than tiles and tokens


class TopKRows(NamedTuple):
    """Rows with a top-k of about one size.

    Attributes:
        rows: int64 [G].
        top_k: int64 [G, 1], each at most the vocabulary.
        max_k: The largest of `top_k`.
    """

    rows: Tensor
    top_k: Tensor
    max_k: int


class Filters(NamedTuple):
    """Filters of R rows.

    Attributes:
        min_p: float32 [R, 1].
        top_p: float64 [R]; infinite keeps all.
        top_k: Rows that have one, none twice.
        has_min_p: Whether min-p drops anything in any row.
        has_top_p: Whether top-p drops anything in any row.
    """

    min_p: Tensor
    top_p: Tensor
    top_k: tuple[TopKRows, ...]
    has_min_p: bool
    has_top_p: bool


def draw(
    weights: Tensor, likeliest: Tensor, filters: Filters, keys: Tensor, scratch: Tensor
) -> Tensor:
    """Return one token for each row, int64 [R]; a row of NaN gets any.

    Args:
        weights: float32 [R, V], probabilities; V is whole tiles.
        likeliest: int64 [R, 1], the token with the largest weight.
        filters: Applied in the order top-k, top-p, min-p.
        keys: int64 [R], streams of noise, see `noise`.
        scratch: float32 [R, V], overwritten.
    """
    floors = torch.full_like(weights[:, :1], -1.0)
    limits = filters.top_p  # of a sum of 1, unless a top-k leaves less
    sums = None
    if filters.top_k:
        floors = _top_k_floors(weights, floors, filters.top_k)
        sums = _sums_above(weights, floors, scratch)
        limits = limits * _total(sums)
    if filters.has_min_p:
        least = filters.min_p * weights.gather(1, likeliest)
        floors = floors.maximum(_just_below(least))
        sums = _sums_above(weights, floors, scratch)
    sums = _tile_sums(weights) if sums is None else sums
    drawn = _race(weights, sums, floors, keys, 0)[:, 0]
    if not filters.has_top_p:
        return drawn
    return _redraw_outside(drawn, weights, limits, keys, scratch)


def _redraw_outside(
    token_ids: Tensor, weights: Tensor, limits: Tensor, keys: Tensor, scratch: Tensor
) -> Tensor:
    """Return `token_ids`, int64 [R], with those outside the nucleus drawn again until inside.

    Args:
        token_ids: A first draw.
        weights: float32 [R, V].
        limits: float64 [R]; a token is inside if those that weigh more sum to less.
        keys: int64 [R].
        scratch: float32 [R, V], overwritten.
    """
    rows = torch.arange(len(keys), device=keys.device)
    drawn = token_ids[:, None]
    for number in count(1):
        floors = weights.gather(1, drawn)
        sums = _sums_above(weights, floors, scratch[: len(floors)])
        outside = (_total(sums) >= limits).nonzero()[:, 0]
        if not outside.numel():
            break
        rows, weights, sums, floors, keys, limits = (
            column.index_select(0, outside)
            for column in (rows, weights, sums, floors, keys, limits)
        )
        drawn = _race(weights, sums, floors, keys, number * _ROUND_STRIDE)
        token_ids[rows] = drawn[:, 0]
    return token_ids


def _race(weights: Tensor, sums: Tensor, floors: Tensor, keys: Tensor, first_index: int) -> Tensor:
    """Return a token of each row, int64 [R, 1], among those that weigh more than the floor.

    Args:
        weights: float32 [R, V].
        sums: float32 [R, M], what such tokens weigh in each tile.
        floors: float32 [R, 1].
        keys: int64 [R].
        first_index: Where the noise begins: tiles first, then tokens.
    """
    num_tiles = sums.shape[-1]
    tile_ids = torch.arange(num_tiles, device=sums.device)
    noise = exponential(keys, first_index + tile_ids)
    tile = (sums / noise).argmax(dim=-1, keepdim=True)
    token_ids = tile * TILE_LEN + torch.arange(TILE_LEN, device=sums.device)
    rivals = pick(weights.unflatten(1, (-1, TILE_LEN)), tile)
    noise = exponential(keys, first_index + num_tiles + token_ids)
    best = (rivals * (rivals > floors) / noise).argmax(dim=-1, keepdim=True)
    return token_ids.gather(1, best)


def _top_k_floors(weights: Tensor, floors: Tensor, groups: tuple[TopKRows, ...]) -> Tensor:
    """Return `floors` with those of the groups' rows just below their `top_k`th weight."""
    tiles = weights.unflatten(1, (-1, TILE_LEN))
    maxima = tiles.amax(dim=-1)
    for group in groups:
        if group.max_k > maxima.shape[-1]:
            kth = _select(weights[group.rows], weights.shape[-1] - group.top_k)
        else:
            best = maxima[group.rows].topk(group.max_k, sorted=False).indices
            rivals = tiles[group.rows[:, None], best].flatten(1)
            kth = rivals.topk(group.max_k).values.gather(1, group.top_k - 1)
        floors[group.rows] = _just_below(kth)
    return floors


def _select(rows: Tensor, ranks: Tensor) -> Tensor:
    """Return the value at each row's rank, smallest first; float32 [G, 1].

    On a CPU numpy selects in a third of the time in which torch would.
    """
    if rows.is_cuda:
        return rows.sort(dim=-1).values.gather(1, ranks)
    parted = np.partition(rows.numpy(), sorted({*ranks[:, 0].tolist()}), axis=-1)
    return torch.from_numpy(parted).gather(1, ranks)


def _sums_above(weights: Tensor, floors: Tensor, scratch: Tensor) -> Tensor:
    """Return what tokens that weigh more than the floor weigh in each tile, float32 [R, M].

    Comparing into floats and multiplying takes a tenth of the time of selecting.
    """
    torch.gt(weights, floors, out=scratch)
    return _tile_sums(scratch.mul_(weights))


def _tile_sums(weights: Tensor) -> Tensor:
    return weights.unflatten(1, (-1, TILE_LEN)).sum(dim=-1)


def _total(sums: Tensor) -> Tensor:
    return sums.sum(dim=-1, dtype=torch.float64)


def _just_below(floors: Tensor) -> Tensor:
    """Return the next smaller float: what weighs more than it weighs the floor or more."""
    return floors.nextafter(torch.full_like(floors, -1.0))
