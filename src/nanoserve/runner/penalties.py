"""Repetition, frequency and presence penalties: logits that depend on earlier tokens.

Owns how often each token occurred. The counts are kept between steps and advanced by the
new tokens; they can always be made again from the history.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanoserve.errors import InvariantError
from nanoserve.sched.step import ScheduledRequest
from nanoserve.sched.token_history import TokenHistory


class PenaltyRows(NamedTuple):
    """Rows with penalties; each tensor float32 [P].

    Attributes:
        rows: Which rows.
        repetition: Divides positive logits of tokens that occurred, multiplies negative ones.
        frequency: Taken off for each time a token occurred in the output.
        presence: Taken off if it occurred there at all.
    """

    rows: tuple[int, ...]
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


class TokenCounts:
    """How often each distinct token of one request occurred in its output.

    Attributes:
        num_distinct: Distinct tokens of prompt and output.
    """

    def __init__(self, history: TokenHistory) -> None:
        self._history = history
        self._index_of: dict[int, int] = {}
        self._token_ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._num_in_output: NDArray[np.float32] = np.empty(0, np.float32)
        prompt = history[: history.num_prompt_tokens]
        self._add(Counter(prompt), weight=0)
        self._add(Counter(history[history.num_prompt_tokens :]), weight=1)

    @property
    def num_distinct(self) -> int:
        """Distinct tokens of prompt and output."""
        return len(self._index_of)

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The distinct tokens, [num_distinct], in order of appearance."""
        return self._token_ids[: self.num_distinct]

    @property
    def num_in_output(self) -> NDArray[np.float32]:
        """How often each of `token_ids` occurred in the output, 0 if only in the prompt."""
        return self._num_in_output[: self.num_distinct]

    def advance(self, history: TokenHistory) -> bool:
        """Count what was added; return False, counting nothing, for another history."""
        if not history.continues(self._history):
            return False
        new_tokens = history[len(self._history) :]
        self._history = history
        self._add(Counter(new_tokens), weight=1)
        return True

    def _add(self, counts: Counter[int], weight: int) -> None:
        self._reserve(self.num_distinct + len(counts))
        for token_id, count in counts.items():
            index = self._index_of.setdefault(token_id, len(self._index_of))
            self._token_ids[index] = token_id
            self._num_in_output[index] += weight * count

    def _reserve(self, num_distinct: int) -> None:
        missing = num_distinct - len(self._token_ids)
        if missing > 0:
            growth = max(missing, len(self._token_ids))
            self._token_ids = np.pad(self._token_ids, (0, growth))
            self._num_in_output = np.pad(self._num_in_output, (0, growth))


class Penalties:
    """Counts of the requests of the last step, and what they do to logits."""

    def __init__(self) -> None:
        self._counts: dict[str, TokenCounts] = {}

    def retain(self, request_ids: set[str]) -> None:
        """Forget all other requests."""
        self._counts = {name: self._counts[name] for name in self._counts.keys() & request_ids}

    def apply(
        self, logits: Tensor, scheduled: Sequence[ScheduledRequest], penalised: PenaltyRows
    ) -> None:
        """Change `logits` in place; forget the requests that are not among `penalised`.

        Args:
            logits: float32 [R, V].
            scheduled: One for each row; those of `penalised` carry their history.
            penalised: Rows and their penalties.
        """
        counts = self._advance([scheduled[row] for row in penalised.rows])
        lengths = [item.num_distinct for item in counts]
        starts = np.repeat(np.array(penalised.rows) * logits.shape[-1], lengths)
        index, owners, nums = (
            torch.from_numpy(column).to(logits.device)
            for column in (
                np.concatenate([item.token_ids for item in counts]) + starts,
                np.repeat(np.arange(len(counts)), lengths),
                np.concatenate([item.num_in_output for item in counts]),
            )
        )
        repetition, frequency, presence = (column[owners] for column in penalised[1:])
        flat = logits.view(-1)
        values = flat[index]
        values = values.clamp(min=0.0) / repetition + values.clamp(max=0.0) * repetition
        flat[index] = values - (frequency * nums + presence * nums.clamp(max=1.0))

    def _advance(self, requests: Sequence[ScheduledRequest]) -> list[TokenCounts]:
        kept: dict[str, TokenCounts] = {}
        for request in requests:
            history = request.history
            if history is None:
                message = f"request {request.request_id!r} has penalties and no history"
                raise InvariantError(message)
            counts = self._counts.get(request.request_id)
            if counts is None or not counts.advance(history):
                counts = TokenCounts(history)
            kept[request.request_id] = counts
        self._counts = kept
        return list(kept.values())
