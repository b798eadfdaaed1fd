"""Sampling the slow way: one row, float64, a dict of tokens, no tensors.

Every comparison that decides something reports how close it was, so that a test can leave
out the cases that float32 may decide otherwise.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import count

from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest
from nanoserve.sched.token_history import TokenHistory

TILE_LEN = 64
MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def drawing(
    sampling: SamplingParams,
    *,
    request_id: str = "a",
    seed: int = 0,
    position: int = 1,
    history: TokenHistory | None = None,
    banned_token_ids: tuple[int, ...] = (),
    allowed_tokens: bytes | None = None,
) -> ScheduledRequest:
    """Return a request whose new token stands at `position`."""
    return ScheduledRequest(
        request_id=request_id,
        token_ids=(0,),
        num_computed_tokens=position - 1,
        block_table=(),
        sampling=sampling,
        seed=seed,
        samples=True,
        history=history,
        banned_token_ids=banned_token_ids,
        allowed_tokens=allowed_tokens,
    )


class ReferenceSampler:
    """Draws one token.

    Attributes:
        margin: How close the closest decision was, as a fraction.
    """

    def __init__(self, logits: Sequence[float], request: ScheduledRequest) -> None:
        self.request = request
        self.margin = math.inf
        self.logits = self._edit(list(logits))

    def sample(self) -> int | None:
        """Return the token; None if none is left."""
        if max(self.logits) == -math.inf:
            return None
        sampling = self.request.sampling
        if sampling.temperature <= 1e-5 or sampling.top_k == 1:
            return self._argmax()
        weights = self.weights()
        kept = self.kept(weights)
        floor = -1.0
        for number in count():
            rivals = {t: w for t, w in self._filtered(weights).items() if w > floor}
            token = self._race(rivals, number << 32)
            if token in kept:
                return token
            floor = weights[token]
        raise AssertionError

    def weights(self) -> list[float]:
        """Return each token's weight, the likeliest at 1."""
        peak, temperature = max(self.logits), self.request.sampling.temperature
        return [math.exp((logit - peak) / temperature) for logit in self.logits]

    def kept(self, weights: list[float]) -> dict[int, float]:
        """Return the tokens that pass all filters, with their weights."""
        sampling = self.request.sampling
        total = sum(self._top_k(weights).values())
        limit = math.inf if sampling.top_p == 1.0 else sampling.top_p * total
        kept = {}
        for token, weight in self._filtered(weights).items():
            above = sum(other for other in weights if other > weight)
            self._compare(above, limit)
            if above < limit:
                kept[token] = weight
        return kept

    def _filtered(self, weights: list[float]) -> dict[int, float]:
        """Return the tokens that pass top-k and min-p."""
        min_p = self.request.sampling.min_p
        for weight in weights:
            self._compare(weight, min_p)
        return {t: w for t, w in self._top_k(weights).items() if w >= min_p}

    def _top_k(self, weights: list[float]) -> dict[int, float]:
        ranked = sorted(weights, reverse=True)
        top_k = self.request.sampling.top_k or len(weights)
        kth = ranked[min(top_k, len(weights)) - 1]
        for weight in weights:
            if weight != kth:
                self._compare(weight, kth)
        return {token: weight for token, weight in enumerate(weights) if weight >= kth}

    def _race(self, rivals: dict[int, float], first_index: int) -> int:
        num_tiles = math.ceil(len(self.logits) / TILE_LEN)
        sums: Counter[int] = Counter()
        for token, weight in rivals.items():
            sums[token // TILE_LEN] += weight  # type: ignore[assignment]
        tile = self._winner({b: s / self._noise(first_index + b) for b, s in sums.items()})
        return self._winner(
            {
                token: weight / self._noise(first_index + num_tiles + token)
                for token, weight in rivals.items()
                if token // TILE_LEN == tile
            }
        )

    def _winner(self, scores: dict[int, float]) -> int:
        ranked = sorted(scores, key=lambda index: -scores[index])
        if len(ranked) > 1:
            self._compare(scores[ranked[0]], scores[ranked[1]])
        return ranked[0]

    def _argmax(self) -> int:
        peak = max(self.logits)
        for logit in self.logits:
            if logit != peak:
                self._compare(logit, peak)
        return self.logits.index(peak)

    def _noise(self, index: int) -> float:
        return exponential(self.request.seed, self.request.context_len, index)

    def _compare(self, one: float, other: float) -> None:
        if math.isfinite(one) and math.isfinite(other):
            scale = max(abs(one), abs(other), 1e-30)
            self.margin = min(self.margin, abs(one - other) / scale)

    def _edit(self, logits: list[float]) -> list[float]:
        request, sampling = self.request, self.request.sampling
        history = request.history
        if history is not None:
            output = Counter(history[history.num_prompt_tokens :])
            for token in set(history):
                logits[token] = penalise(logits[token], output[token], sampling)
        forced = [token for token, bias in sampling.logit_bias if bias == 100.0]
        for token, bias in sampling.logit_bias:
            logits[token] = -math.inf if bias == -100.0 else logits[token] + bias
        for token in range(len(logits)):
            banned = token in request.banned_token_ids
            mask = request.allowed_tokens
            if mask is not None:
                byte = mask[token // 8] if token // 8 < len(mask) else 0
                banned = banned or not byte >> token % 8 & 1
            if banned:
                logits[token] = -math.inf
        if any(logits[token] > -math.inf for token in forced):
            return [x if token in forced else -math.inf for token, x in enumerate(logits)]
        return logits


def penalise(logit: float, num_in_output: int, sampling: SamplingParams) -> float:
    """Return the logit of a token that occurred."""
    factor = sampling.repetition_penalty
    logit = logit / factor if logit > 0 else logit * factor
    presence = sampling.presence_penalty if num_in_output else 0.0
    return logit - num_in_output * sampling.frequency_penalty - presence


def exponential(seed: int, position: int, index: int) -> float:
    """Return the noise of `runner.noise`, by Python's ints."""
    key = mix(mix(seed + GAMMA) + position * GAMMA)
    bits = mix(key + (index + 1) * GAMMA)
    return -math.log(((bits >> 12) + 0.5) * 2.0**-52)


def mix(state: int) -> int:
    """Return SplitMix64's output function of `state`."""
    state &= MASK
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)
