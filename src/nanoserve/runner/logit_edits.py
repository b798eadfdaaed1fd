"""What a request adds to logits or forbids: biases, banned tokens, a grammar's tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nanoserve.runner.vocab_tiles import NEVER
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest

FORCING_BIAS = 100.0  # in OpenAI's API exclusive selection, and its negative a ban
# Taken off every token that is not forced: more than logits ever differ by, and still a
# finite number, so that a row whose forced tokens are all banned has others to draw.
_HANDICAP = 1e5

_BITS_OF_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_LIMITS_OF_BYTES = np.where(_BITS_OF_BYTES, np.float32(0.0), np.float32(NEVER))


class Biases(NamedTuple):
    """Biases of all rows.

    Attributes:
        places: int64 [E], row * width + token id; none twice.
        values: float32 [E], what is added there.
        handicaps: float32 [R, 1], taken off all other tokens of a row; None if all are 0.
    """

    places: Tensor
    values: Tensor
    handicaps: Tensor | None


def build_biases(
    params: Sequence[SamplingParams], width: int, device: torch.device
) -> Biases | None:
    """Return the biases of rows that lie `width` logits apart; None if there are none."""
    index: list[int] = []
    values: list[float] = []
    handicaps: list[float] = []
    for row, sampling in enumerate(params):
        biases = {token_id: bias for token_id, bias in sampling.logit_bias if token_id < width}
        handicap = _HANDICAP if FORCING_BIAS in biases.values() else 0.0
        handicaps.append(handicap)
        index.extend(row * width + token_id for token_id in biases)
        values.extend(_addend(bias, handicap) for bias in biases.values())
    if not index:
        return None
    return Biases(
        torch.tensor(index, device=device),
        torch.tensor(values, dtype=torch.float32, device=device),
        torch.tensor(handicaps, device=device)[:, None] if any(handicaps) else None,
    )


def _addend(bias: float, handicap: float) -> float:
    if bias == -FORCING_BIAS:
        return NEVER
    return bias if bias == FORCING_BIAS else bias - handicap


def add_biases(logits: Tensor, biases: Biases) -> None:
    """Add `biases` to `logits`, float32 [R, width], in place."""
    flat = logits.view(-1)
    values = flat[biases.places] + biases.values
    if biases.handicaps is not None:
        logits.sub_(biases.handicaps)
    flat[biases.places] = values


def is_constrained(request: ScheduledRequest) -> bool:
    """Whether some tokens may not be drawn in this step."""
    return bool(request.banned_token_ids) or request.allowed_tokens is not None


def ban_tokens(logits: Tensor, scheduled: Sequence[ScheduledRequest]) -> None:
    """Put what may not be drawn at -inf, in place.

    Args:
        logits: float32 [R, width]; width is a multiple of 8.
        scheduled: One for each row.
    """
    width = logits.shape[-1]
    index = [
        row * width + token_id
        for row, request in enumerate(scheduled)
        for token_id in request.banned_token_ids
        if token_id < width  # else it would be a neighbour's
    ]
    logits.view(-1)[torch.tensor(index, dtype=torch.int64, device=logits.device)] = NEVER
    masks = {
        row: request.allowed_tokens
        for row, request in enumerate(scheduled)
        if request.allowed_tokens is not None
    }
    if masks:
        rows = torch.tensor(list(masks), device=logits.device)
        logits[rows] += _limits(list(masks.values()), width).to(logits.device)


def _limits(masks: Sequence[bytes], width: int) -> Tensor:
    """Return 0 for allowed tokens and -inf for others, float32 [len(masks), width]."""
    num_bytes = width // 8
    joined = b"".join(mask[:num_bytes].ljust(num_bytes, b"\0") for mask in masks)
    limits = _LIMITS_OF_BYTES[np.frombuffer(joined, np.uint8)]
    return torch.from_numpy(limits.reshape(len(masks), width))
