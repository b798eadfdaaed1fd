"""Logits to token ids, for a whole batch of requests with parameters of their own.

Owns temperature, top-k, top-p, min-p and the draw. Knows nothing of where the uniforms
come from (see `uniform`). A row's token depends on nothing but that row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nanoserve.sched.sampling_params import SamplingParams

GREEDY_TEMPERATURE = 1e-5  # at or below it only exact ties are open, and argmax breaks those
TOP_P_CANDIDATES = 1024  # tokens ranked for top-p before the whole row is


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Outcome of one batch.

    Attributes:
        token_ids: One for each row.
        broken_rows: Rows whose logits hold NaN or +inf; their token ids mean nothing.
    """

    token_ids: list[int]
    broken_rows: list[int]


class _Settings(NamedTuple):
    """Parameters of rows that are drawn together; each float64 [rows, 1]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor

    def select(self, rows: Tensor) -> "_Settings":
        return _Settings(*(column[rows] for column in self))


def sample(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> SampledTokens:
    """Draw one token for each row.

    Filters apply in the order temperature, top-k, top-p, min-p. The token is the first
    whose cumulative probability passes the row's uniform.

    Args:
        logits: float32 [rows, V].
        params: One for each row.
        uniforms: One for each row, in [0, 1); greedy rows ignore theirs.
    """
    peaks = logits.amax(dim=-1)
    token_ids = logits.argmax(dim=-1)
    broken_rows = (~peaks.isfinite()).nonzero()[:, 0].tolist()
    for num_candidates, rows in _alike(params, logits.shape[-1]).items():
        settings = _settings([params[row] for row in rows], [uniforms[row] for row in rows], logits)
        index = torch.tensor(rows, device=logits.device)
        weights = _weights(logits[index], peaks[index], settings)
        if num_candidates is None:
            token_ids[index] = _first_past(weights, settings)
        else:
            token_ids[index] = _draw_ranked(weights, settings, num_candidates)
    return SampledTokens(token_ids.tolist(), broken_rows)


def _alike(params: Sequence[SamplingParams], vocab_size: int) -> dict[int | None, list[int]]:
    """Group the rows that are not greedy by how many candidates are ranked; None is no ranking.

    The number depends on the row alone, so its neighbours cannot change how ties fall.
    """
    groups: dict[int | None, list[int]] = {}
    for row, p in enumerate(params):
        if p.temperature <= GREEDY_TEMPERATURE or p.top_k == 1:
            continue
        num_candidates = None
        if p.top_k:
            num_candidates = min(1 << (p.top_k - 1).bit_length(), vocab_size)
        elif p.top_p < 1.0:
            num_candidates = min(TOP_P_CANDIDATES, vocab_size)
        groups.setdefault(num_candidates, []).append(row)
    return groups


def _settings(
    params: Sequence[SamplingParams], uniforms: Sequence[float], logits: Tensor
) -> _Settings:
    no_limit = logits.shape[-1]
    table = [
        (p.temperature, p.top_k or no_limit, p.top_p, p.min_p, u)
        for p, u in zip(params, uniforms, strict=True)
    ]
    columns = torch.tensor(table, dtype=torch.float64, device=logits.device)
    return _Settings(*columns.split(1, dim=1))


def _weights(logits: Tensor, peaks: Tensor, settings: _Settings) -> Tensor:
    """Return unnormalised probabilities, the likeliest token of each row at exactly 1."""
    return ((logits - peaks[:, None]) / settings.temperature.to(logits.dtype)).exp_()


def _draw_ranked(weights: Tensor, settings: _Settings, num_candidates: int) -> Tensor:
    """Return one token id for each row, from its `num_candidates` likeliest tokens.

    A row whose top-p reaches further down is ranked in full: that costs about eight
    times as much at 50,000 tokens.
    """
    vocab_size = weights.shape[-1]
    ranked, ranked_ids = weights.topk(num_candidates)
    ranks = torch.arange(num_candidates, device=weights.device)
    kept = ranked.masked_fill(ranks >= settings.top_k, 0.0)
    cumulative = kept.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    has_top_k = settings.top_k < vocab_size
    total = torch.where(has_top_k, total, weights.sum(dim=-1, keepdim=True, dtype=torch.float64))
    kept = kept.masked_fill(cumulative - kept >= settings.top_p * total, 0.0)
    token_ids = ranked_ids.gather(-1, _first_past(kept, settings)[:, None])[:, 0]
    falls_short = (cumulative[:, -1:] < settings.top_p * total)[:, 0].nonzero()[:, 0]
    if falls_short.numel() and num_candidates < vocab_size:
        rest = settings.select(falls_short)
        token_ids[falls_short] = _draw_ranked(weights[falls_short], rest, vocab_size)
    return token_ids


def _first_past(weights: Tensor, settings: _Settings) -> Tensor:
    """Return the column, int64 [rows], where the cumulative weight passes uniform * total.

    A column of weight 0 never passes what the column before it did not.
    """
    kept = weights.masked_fill(weights < settings.min_p, 0.0)
    cumulative = kept.cumsum(dim=-1, dtype=torch.float64)
    targets = settings.uniform * cumulative[:, -1:]
    columns = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    return columns.clamp_(max=weights.shape[-1] - 1)  # only a row of NaN gets that far
