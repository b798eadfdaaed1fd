"""`answer`: a query in, everything the planner says of it out. Pure; no text but notes.

Composes `stage_budget` (what is left for the pool), `cache_cost` (what requests take of it)
and `speed_bounds`. Rendering is `plan_table`, formulas one by one `plan_formulas`, flags for
the engine `launch_command`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nanoserve.plan.formula import Formula, compute
from nanoserve.plan.interval import Interval
from nanoserve.plan.kv_layout import (
    full_bytes_per_token,
    growing_bytes_per_token,
    state_bytes_per_request,
)
from nanoserve.plan.launch_command import command_notes, launch_command
from nanoserve.plan.plan_choices import PlanChoices, choose_plan
from nanoserve.plan.plan_notes import plan_notes
from nanoserve.plan.plan_query import PlanQuery
from nanoserve.plan.rank_weights import rank_weights
from nanoserve.plan.speed_bounds import DecodeFloor, PrefillBound, decode_floor, prefill_bound
from nanoserve.plan.stage_budget import BudgetLine, StageBudget, stage_budget, utilization_of
from nanoserve.spec.param_count import count_active_parameters, count_parameters
from nanoserve.units import format_bytes

Verdict = Literal["does not load", "loads, cannot serve", "serves"]

LEAST_REQUESTS = 4  # of the workload at once; under it a server queues whoever comes
HEADROOM = 0.925  # share of what fits that is admitted, so that growing requests find blocks
_STEP = 1024  # tokens; a length chosen for the asker is a multiple of it


@dataclass(frozen=True, slots=True)
class WorkloadFit:
    """How many requests of the workload run at once.

    Attributes:
        mean: Of the mean length.
        p95: Of the 95th percentile of lengths.
        recommended: Formula of the recommended `max_num_seqs`.
    """

    mean: Interval
    p95: Interval
    recommended: Formula

    @property
    def max_num_seqs(self) -> int:
        """The recommended number, at least 1."""
        return max(1, int(self.recommended.value))


@dataclass(frozen=True, slots=True)
class KvFacts:
    """What requests cost on one GPU of the deciding stage, layer sums without any padding.

    Attributes:
        token_bytes: Of each further token in the layers that keep all.
        window_bytes: Of each token in the layers that keep a window or chunk.
        state_bytes: Of a request's states.
    """

    token_bytes: int
    window_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """Everything the planner says.

    Attributes:
        query: What was asked.
        choices: What it was resolved to.
        stages: Each pipeline stage's GPU.
        binding: Number of the stage that holds the fewest tokens.
        verdict: Whether it loads and serves.
        reason: Why, in a sentence with numbers.
        max_model_len: Longest request that it is planned with.
        longest_fit: Longest request that fits at all; 0 where none does.
        tokens: Tokens of the pool, as the engine would log them.
        concurrency: Requests of the longest length at once, likely figure.
        fit: Requests of the workload at once.
        decode: Floors of a decode step: of one request, and of the recommended batch.
        prefill: Bound on the workload's mean prompt.
        num_params: Parameters of the model.
        num_active_params: Those that one token visits.
        notes: What the asker should know.
    """

    query: PlanQuery
    choices: PlanChoices
    stages: tuple[StageBudget, ...]
    binding: int
    verdict: Verdict
    reason: str
    max_model_len: int
    longest_fit: int
    tokens: Interval
    concurrency: float
    fit: WorkloadFit
    decode: tuple[DecodeFloor, ...]
    prefill: PrefillBound
    num_params: int
    num_active_params: int
    notes: tuple[str, ...]

    @property
    def stage(self) -> StageBudget:
        """The stage that decides."""
        return self.stages[self.binding]

    @property
    def lines(self) -> tuple[BudgetLine, ...]:
        """The parts of the deciding GPU, in the order subtracted."""
        return self.stage.lines

    @property
    def pool(self) -> Interval:
        """The pool of the deciding GPU."""
        return self.stage.pool

    @property
    def weight_bytes(self) -> int:
        """Weights on the deciding GPU."""
        return self.stage.weights.weight_bytes.mid

    @property
    def fits(self) -> bool:
        """Whether it serves: exit code 0, else 4."""
        return self.verdict == "serves"

    @property
    def utilization(self) -> float:
        """The share of memory that the engine is given."""
        return utilization_of(self.query)

    @property
    def command(self) -> str:
        """What starts the engine as planned."""
        return launch_command(self.query, self.choices, self.max_model_len, self.fit.max_num_seqs)

    @property
    def kv_facts(self) -> KvFacts:
        """What requests cost on one GPU of the deciding stage."""
        shape, cache = self.stage.shape, self.choices.cache
        token_bytes = growing_bytes_per_token(shape, cache)
        return KvFacts(
            token_bytes,
            full_bytes_per_token(shape, cache) - token_bytes,
            state_bytes_per_request(shape, cache),
        )


def answer(query: PlanQuery) -> PlanAnswer:
    """Plan a query.

    Raises:
        OptionError: The ranks do not divide the model, or a format is unknown.
    """
    choices = choose_plan(query)
    stored = rank_weights(
        query.model.shape,
        choices.weight_format,
        choices.pp,
        choices.tp,
        query.model.file_bytes if query.weight_format is None else None,
    )
    stages = tuple(stage_budget(query, choices, weights) for weights in stored)
    longest_fit = _longest_fit(stages, choices.longest)
    max_model_len = _served_length(query, choices, longest_fit)
    binding = _binding(stages, max_model_len)
    fit = _workload_fit(stages, choices)
    verdict, reason = _verdict(query, choices, stages, binding, max_model_len, fit)
    context = choices.workload.mean
    batches = dict.fromkeys((1, fit.max_num_seqs))
    return PlanAnswer(
        query=query,
        choices=choices,
        stages=stages,
        binding=binding,
        verdict=verdict,
        reason=reason,
        max_model_len=max_model_len,
        longest_fit=longest_fit,
        tokens=_tokens(stages[binding], max_model_len),
        concurrency=_concurrency(stages, max_model_len),
        fit=fit,
        decode=tuple(decode_floor(query, choices, stages, batch, context) for batch in batches),
        prefill=prefill_bound(query, choices, choices.workload.mean_prompt),
        num_params=count_parameters(query.model.shape).total,
        num_active_params=count_active_parameters(query.model.shape).total,
        notes=(
            *choices.notes,
            *plan_notes(query, choices, max_model_len, _concurrency(stages, choices.longest) >= 1),
            *command_notes(query),
        ),
    )


def _served_length(query: PlanQuery, choices: PlanChoices, longest_fit: int) -> int:
    """Return the length asked for, else the longest that surely fits, in whole 1,024s.

    Where nothing fits it is the model's own.
    """
    if query.max_model_len is not None or longest_fit >= choices.longest:
        return choices.longest
    return longest_fit // _STEP * _STEP or longest_fit or choices.longest


def _longest_fit(stages: Sequence[StageBudget], most: int) -> int:
    """Return the longest request that the least pool holds; 0 where none does."""
    return min(_stage_longest(stage, most) for stage in stages)


def _stage_longest(stage: StageBudget, most: int) -> int:
    pool = stage.pool.low if stage.pool.low > 0 else stage.pool.mid
    if stage.cost.is_free:
        return most
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if stage.cost.concurrency(pool, middle).value >= 1:
            low = middle
        else:
            high = middle - 1
    return low


def _binding(stages: Sequence[StageBudget], max_model_len: int) -> int:
    """Return the stage whose pool holds the fewest requests; the tightest where none does."""
    if all(stage.pool.mid > 0 for stage in stages):
        held = [
            float("inf")
            if stage.cost.is_free
            else stage.cost.concurrency(stage.pool.mid, max_model_len).value
            for stage in stages
        ]
        return held.index(min(held))
    left = [stage.pool.mid for stage in stages]
    return left.index(min(left))


def _tokens(stage: StageBudget, max_model_len: int) -> Interval:
    if stage.cost.is_free:
        return Interval.exactly(0)
    pools = (stage.pool.low, stage.pool.mid, stage.pool.high)
    return Interval(*(int(stage.cost.tokens(pool, max_model_len).value) for pool in pools))


def _concurrency(stages: Sequence[StageBudget], max_model_len: int) -> float:
    held = [
        float(stage.cost.concurrency(stage.pool.mid, max_model_len).value)
        for stage in stages
        if not stage.cost.is_free
    ]
    return min(held, default=0.0)


def _workload_fit(stages: Sequence[StageBudget], choices: PlanChoices) -> WorkloadFit:
    workload = choices.workload
    p95 = _requests(stages, workload.p95, choices.max_num_seqs)
    recommended = compute(
        "recommended max_num_seqs",
        f"min(floor({HEADROOM} * fit), max_num_seqs)",
        "requests",
        {"fit": p95.mid, "max_num_seqs": choices.max_num_seqs},
    )
    return WorkloadFit(_requests(stages, workload.mean, choices.max_num_seqs), p95, recommended)


def _requests(stages: Sequence[StageBudget], num_tokens: int, unlimited: int) -> Interval:
    """Return how many requests of a length all stages hold at once."""
    paying = [stage for stage in stages if not stage.cost.is_free]
    if not paying:
        return Interval.exactly(unlimited)
    return Interval(
        min(int(stage.cost.requests(stage.pool.low, num_tokens).value) for stage in paying),
        min(int(stage.cost.requests(stage.pool.mid, num_tokens).value) for stage in paying),
        min(int(stage.cost.requests(stage.pool.high, num_tokens).value) for stage in paying),
    )


def _verdict(
    query: PlanQuery,
    choices: PlanChoices,
    stages: Sequence[StageBudget],
    binding: int,
    max_model_len: int,
    fit: WorkloadFit,
) -> tuple[Verdict, str]:
    heaviest = max(stages, key=lambda stage: stage.weights.weight_bytes.mid - stage.usable_bytes)
    weights, usable = heaviest.weights.weight_bytes.mid, heaviest.usable_bytes
    if weights > usable:
        return "does not load", (
            f"the weights take {format_bytes(weights)} of each GPU and the engine may hold "
            f"{format_bytes(usable)}"
        )
    stage = stages[binding]
    if stage.pool.mid <= 0:
        return "loads, cannot serve", (
            f"the weights fit, and what the largest step takes leaves "
            f"{format_bytes(stage.pool.mid)} for the KV pool"
        )
    if not stage.cost.is_free and stage.cost.concurrency(stage.pool.mid, max_model_len).value < 1:
        need = stage.cost.request_bytes(max_model_len)
        return "loads, cannot serve", (
            f"one request of {max_model_len:,} tokens takes {format_bytes(need)} and the pool "
            f"has {format_bytes(stage.pool.mid)}"
        )
    length = choices.workload.p95
    count = f"{fit.p95.mid:,} requests of {length:,} tokens fit at once"
    if fit.p95.mid < LEAST_REQUESTS:
        return "loads, cannot serve", f"{count}, fewer than {LEAST_REQUESTS}"
    return "serves", count
