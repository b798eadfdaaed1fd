"""How likely tokens are by the model alone, with the likeliest alternatives.

Owns log-probabilities of raw logits. Knows nothing of temperature, penalties or filters:
what is reported does not depend on how tokens are drawn.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.runner.vocab_tiles import argmax_ids, to_tiles, top_ids
from nanoserve.sched.step import TokenLogprobs

LOWEST_LOGPROB = -9999.0  # JSON knows no infinity; OpenAI's API names this number


def token_logprobs(
    logits: Tensor,
    token_ids: Tensor,
    nums_top: Sequence[int],
    scratch: Tensor | None = None,
    maxima: Tensor | None = None,
) -> list[TokenLogprobs | None]:
    """Return how likely each row's token is; None for a row of logits that are not finite.

    Args:
        logits: float32 [R, V], as the model made them.
        token_ids: int64 [R].
        nums_top: Alternatives to name for each row; at most the vocabulary is.
        scratch: [R, V], overwritten if given.
        maxima: [R, M], the largest logit of each tile, for who has them already.
    """
    tiles = to_tiles(logits)
    maxima = tiles.amax(dim=-1) if maxima is None else maxima
    peaks = maxima.amax(dim=-1, keepdim=True)
    # The likeliest token's probability is 1 / sum(exp(logit - peak)).
    likeliest = argmax_ids(tiles, maxima)[:, None]
    peak_probs = torch.softmax(logits, dim=-1, out=scratch).gather(1, likeliest)
    log_totals = peaks - peak_probs.log()
    top = top_ids(tiles, maxima, min(max(nums_top), logits.shape[-1]))
    named = torch.cat([token_ids[:, None], top], dim=1)
    scores = (logits.gather(1, named) - log_totals).clamp_(LOWEST_LOGPROB, 0.0)
    rows = zip(
        peaks[:, 0].isfinite().tolist(), named.tolist(), scores.tolist(), nums_top, strict=True
    )
    return [
        _name(ids, values, num_top) if is_finite else None
        for is_finite, ids, values, num_top in rows
    ]


def _name(ids: list[int], scores: list[float], num_top: int) -> TokenLogprobs:
    ranked = zip(ids[1 : 1 + num_top], scores[1 : 1 + num_top], strict=True)
    return TokenLogprobs(ids[0], scores[0], tuple(ranked))
