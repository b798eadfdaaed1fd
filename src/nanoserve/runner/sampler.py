"""Logits to tokens, for a whole batch of requests with parameters of their own.

Owns the order: penalties, biases, bans, temperature, filters, draw; and which request a
broken row belongs to. A row's token depends on nothing but that row, bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import is_

import torch
from torch import Tensor

from nanoserve.runner.logit_edits import add_biases, ban_tokens, is_constrained
from nanoserve.runner.logprobs import token_logprobs
from nanoserve.runner.noise import stream_keys
from nanoserve.runner.nucleus import draw
from nanoserve.runner.penalties import Penalties
from nanoserve.runner.sampling_table import SamplingTable, build_table
from nanoserve.runner.vocab_tiles import argmax_ids, to_tiles
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, TokenLogprobs

NOT_FINITE = (
    "The model's logits are not finite. The weights may be damaged, or float16 has "
    "overflowed: try --dtype float32."
)
NOTHING_LEFT = (
    "No token is left to draw: grammar, banned stop ids and logit_bias together exclude the "
    "whole vocabulary, or a repetition_penalty close to 0 has overflowed."
)

# float32 [R, V] to the largest logit of each row, NaN if one is, and the lowest id it has
RowMax = Callable[[Tensor], tuple[list[float], list[int]]]


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Outcome of one batch.

    Attributes:
        token_ids: One for each row; None for a failed one.
        logprobs: How likely the tokens were, of requests that ask for it, by request id.
        failed: Requests without a token, with the problem in words.
    """

    token_ids: tuple[int | None, ...]
    logprobs: dict[str, TokenLogprobs]
    failed: dict[str, str]


class Sampler:
    """Draws tokens from the logits of one model.

    What it keeps between calls only saves time: any call can be the first.
    """

    def __init__(self, row_max: RowMax | None = None) -> None:
        """Note the way to the likeliest tokens where no row needs more than them.

        Args:
            row_max: Finds them in one pass over the logits; None finds them as it does
                for rows that need more.
        """
        self._row_max = row_max
        self._penalties = Penalties()
        self._params: list[SamplingParams] = []
        self._table: SamplingTable | None = None
        self._scratch = torch.empty(0)

    def sample(self, logits: Tensor, scheduled: Sequence[ScheduledRequest]) -> SampledTokens:
        """Draw one token for each row.

        Args:
            logits: float32 [R, V], not changed.
            scheduled: One for each row.
        """
        table = self._table_for(scheduled, logits)
        is_constrained_step = any(map(is_constrained, scheduled))
        if self._row_max is not None and table.is_greedy and not is_constrained_step:
            peaks, ids = self._row_max(logits)
            return _sampled(ids, scheduled, {}, _fail(peaks, scheduled, NOT_FINITE))
        tiles = to_tiles(logits)
        raw_maxima = maxima = tiles.amax(dim=-1)
        failed = _fail(maxima.amax(dim=-1).tolist(), scheduled, NOT_FINITE)
        if table.has_edits or is_constrained_step:
            tiles = self._edit(tiles, scheduled, table)
            maxima = tiles.amax(dim=-1)
            failed = _fail(maxima.amax(dim=-1).tolist(), scheduled, NOTHING_LEFT) | failed
        token_ids = argmax_ids(tiles, maxima)
        if table.drawn_rows:
            likeliest = token_ids[table.drawn][:, None]
            drawn = self._draw(tiles.flatten(1), likeliest, scheduled, table)
            token_ids[table.drawn] = drawn
        named = self._logprobs(logits, raw_maxima, token_ids, table)
        return _sampled(token_ids.tolist(), scheduled, named, failed)

    def _table_for(self, scheduled: Sequence[ScheduledRequest], logits: Tensor) -> SamplingTable:
        """Return the table of the last batch, or a new one if requests came or left."""
        params = [request.sampling for request in scheduled]
        is_same = len(params) == len(self._params) and all(map(is_, params, self._params))
        if self._table is None or not is_same:
            self._table = build_table(params, logits.shape[-1], logits.device)
            self._params = params
            self._penalties.retain({request.request_id for request in scheduled})
        return self._table

    def _reserve(self, like: Tensor) -> Tensor:
        """Return two tensors of the shape of `like`, stacked, with any content.

        They are the same memory at every call: edited logits lie in the first until the
        weights made from them do.
        """
        num_values = 2 * like.numel()
        if self._scratch.numel() < num_values or self._scratch.device != like.device:
            self._scratch = torch.empty(num_values, device=like.device)
        return self._scratch[:num_values].view(2, *like.shape)

    def _edit(
        self, tiles: Tensor, scheduled: Sequence[ScheduledRequest], table: SamplingTable
    ) -> Tensor:
        """Return a copy of `tiles` with all that comes before temperature."""
        edited = self._reserve(tiles)[0].copy_(tiles)
        logits = edited.flatten(1)
        if table.penalised is not None:
            self._penalties.apply(logits, scheduled, table.penalised)
        if table.biases is not None:
            add_biases(logits, table.biases)
        ban_tokens(logits, scheduled)
        return edited

    def _draw(
        self,
        logits: Tensor,
        likeliest: Tensor,
        scheduled: Sequence[ScheduledRequest],
        table: SamplingTable,
    ) -> Tensor:
        """Return a token for each row that is drawn at random."""
        requests = [scheduled[row] for row in table.drawn_rows]
        keys = stream_keys(
            [request.seed for request in requests],
            [request.context_len for request in requests],
            logits.device,
        )
        weights, scratch = self._reserve(logits)[:, : len(requests)]
        some_logits = (
            logits if len(requests) == len(logits) else logits.index_select(0, table.drawn)
        )
        torch.div(some_logits, table.temperatures, out=scratch)
        torch.softmax(scratch, dim=-1, out=weights)
        return draw(weights, likeliest, table.filters, keys, scratch)

    def _logprobs(
        self, logits: Tensor, maxima: Tensor, token_ids: Tensor, table: SamplingTable
    ) -> dict[int, TokenLogprobs]:
        """Return the log-probabilities of the rows that ask for them."""
        if not table.named_rows:
            return {}
        if len(table.named_rows) < len(logits):
            rows = list(table.named_rows)
            logits, maxima, token_ids = logits[rows], maxima[rows], token_ids[rows]
        scratch = self._reserve(logits)[0]
        named = token_logprobs(logits, token_ids, table.nums_top, scratch, maxima)
        return {
            row: logprobs
            for row, logprobs in zip(table.named_rows, named, strict=True)
            if logprobs is not None
        }


def _sampled(
    token_ids: list[int],
    scheduled: Sequence[ScheduledRequest],
    named: dict[int, TokenLogprobs],
    failed: dict[str, str],
) -> SampledTokens:
    """Return what came of each row, and nothing of failed ones."""
    ids = [request.request_id for request in scheduled]
    return SampledTokens(
        tuple(
            None if request_id in failed else token_id
            for request_id, token_id in zip(ids, token_ids, strict=True)
        ),
        {ids[row]: logprobs for row, logprobs in named.items() if ids[row] not in failed},
        failed,
    )


def _fail(
    maxima: list[float], scheduled: Sequence[ScheduledRequest], problem: str
) -> dict[str, str]:
    """Return the problem of each request whose largest logit is NaN or infinite."""
    return {
        request.request_id: problem
        for request, maximum in zip(scheduled, maxima, strict=True)
        if not isfinite(maximum)
    }
