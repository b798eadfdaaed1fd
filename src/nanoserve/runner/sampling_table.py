"""The parameters of a batch's requests as tensors, made once for as long as it lasts."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nanoserve.runner.logit_edits import Biases, build_biases
from nanoserve.runner.nucleus import Filters, TopKRows
from nanoserve.runner.penalties import PenaltyRows
from nanoserve.runner.vocab_tiles import TILE_LEN
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.units import round_up

GREEDY_TEMPERATURE = 1e-5  # at or below it only exact ties are open, and argmax breaks those
_LEAST_PENALTY = 1e-30  # a divisor that float32 can hold


@dataclass(frozen=True, slots=True)
class SamplingTable:
    """Parameters of a batch of R rows.

    Attributes:
        drawn_rows: Rows drawn at random; the others take the argmax.
        drawn: The same, int64 [D].
        temperatures: float32 [D, 1].
        filters: Of the drawn rows.
        penalised: Rows with penalties; None if there are none.
        biases: Of all rows; None if there are none.
        named_rows: Rows whose token's log-probability is asked for.
        nums_top: Alternatives for each of `named_rows`.
    """

    drawn_rows: tuple[int, ...]
    drawn: torch.Tensor
    temperatures: torch.Tensor
    filters: Filters
    penalised: PenaltyRows | None
    biases: Biases | None
    named_rows: tuple[int, ...]
    nums_top: tuple[int, ...]

    @property
    def has_edits(self) -> bool:
        """Whether any row's logits change before temperature."""
        return self.penalised is not None or self.biases is not None

    @property
    def is_greedy(self) -> bool:
        """Whether every row takes its likeliest token, and nothing else is asked of it."""
        return not (self.drawn_rows or self.named_rows or self.has_edits)


def build_table(
    params: Sequence[SamplingParams], vocab_size: int, device: torch.device
) -> SamplingTable:
    """Return the table of a batch with these parameters, one for each row."""
    drawn_rows = tuple(row for row, sampling in enumerate(params) if not _is_greedy(sampling))
    drawn_params = [params[row] for row in drawn_rows]
    named = {
        row: sampling.num_logprobs
        for row, sampling in enumerate(params)
        if sampling.num_logprobs is not None
    }
    temperatures = [sampling.temperature for sampling in drawn_params]
    return SamplingTable(
        drawn_rows=drawn_rows,
        drawn=torch.tensor(drawn_rows, dtype=torch.int64, device=device),
        temperatures=_column(temperatures, device)[:, None],
        filters=_build_filters(drawn_params, vocab_size, device),
        penalised=_build_penalties(params, device),
        biases=build_biases(params, round_up(vocab_size, TILE_LEN), device),
        named_rows=tuple(named),
        nums_top=tuple(named.values()),
    )


def _is_greedy(sampling: SamplingParams) -> bool:
    return sampling.temperature <= GREEDY_TEMPERATURE or sampling.top_k == 1


def _build_filters(
    params: Sequence[SamplingParams], vocab_size: int, device: torch.device
) -> Filters:
    """Group the rows with a top-k by its size, so that a large one costs no other row much."""
    groups: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for row, sampling in enumerate(params):
        if 0 < sampling.top_k < vocab_size:
            groups[sampling.top_k.bit_length()].append((row, sampling.top_k))
    top_k = []
    for group in groups.values():
        rows, sizes = torch.tensor(group, device=device).unbind(1)
        top_k.append(TopKRows(rows, sizes[:, None], max(size for _, size in group)))
    top_p = [sampling.top_p if sampling.top_p < 1.0 else torch.inf for sampling in params]
    min_p = [sampling.min_p for sampling in params]
    return Filters(
        min_p=_column(min_p, device)[:, None],
        top_p=torch.tensor(top_p, dtype=torch.float64, device=device),
        top_k=tuple(top_k),
        has_min_p=any(min_p),
        has_top_p=any(share < torch.inf for share in top_p),
    )


def _build_penalties(params: Sequence[SamplingParams], device: torch.device) -> PenaltyRows | None:
    rows = tuple(row for row, sampling in enumerate(params) if sampling.has_penalties)
    if not rows:
        return None
    some = [params[row] for row in rows]
    return PenaltyRows(
        rows,
        _column([max(p.repetition_penalty, _LEAST_PENALTY) for p in some], device),
        _column([p.frequency_penalty for p in some], device),
        _column([p.presence_penalty for p in some], device),
    )


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)
