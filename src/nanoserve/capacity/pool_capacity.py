"""What the pools of all stages hold together: the longest request, tokens, requests at once.

The least stage decides. What one request costs in a pool is `cache_cost`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nanoserve.capacity.budget_line import StageBudget
from nanoserve.capacity.cache_cost import CacheCost
from nanoserve.capacity.interval import Interval
from nanoserve.capacity.plan_choices import PlanChoices
from nanoserve.plan.formula import Formula, compute

LEAST_LENGTH = 1024  # tokens; a length chosen for the asker is a multiple of it
HEADROOM = 0.925  # share of what fits that is admitted, so that growing requests find blocks


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


def longest_fit(stages: Sequence[StageBudget], most: int) -> int:
    """Return the longest request that every stage's pool holds; 0 where none does.

    That is the least pool of the range, where it holds a length worth serving; else the likely.
    """
    return min(_stage_longest(stage, most) for stage in stages)


def _stage_longest(stage: StageBudget, most: int) -> int:
    if stage.cost.is_free:
        return most
    surely = _longest_in(stage.pool.low, stage.cost, most)
    return surely if surely >= LEAST_LENGTH else _longest_in(stage.pool.mid, stage.cost, most)


def _longest_in(pool: int, cost: CacheCost, most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if cost.concurrency(pool, middle).value >= 1:
            low = middle
        else:
            high = middle - 1
    return low


def binding(stages: Sequence[StageBudget], max_model_len: int) -> int:
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


def tokens(stage: StageBudget, max_model_len: int) -> Interval:
    """Return the tokens of a stage's pool, as the engine logs them; 0 where nothing is kept."""
    if stage.cost.is_free:
        return Interval.exactly(0)
    pools = (stage.pool.low, stage.pool.mid, stage.pool.high)
    return Interval(*(int(stage.cost.tokens(pool, max_model_len).value) for pool in pools))


def concurrency(stages: Sequence[StageBudget], max_model_len: int) -> float:
    """Return the requests of the longest length that every stage's likely pool holds."""
    held = [
        float(stage.cost.concurrency(stage.pool.mid, max_model_len).value)
        for stage in stages
        if not stage.cost.is_free
    ]
    return min(held, default=0.0)


def workload_fit(stages: Sequence[StageBudget], choices: PlanChoices) -> WorkloadFit:
    """Return how many requests of the workload run at once, and how many to admit."""
    workload = choices.workload
    p95 = _requests(stages, workload.p95, choices.max_num_seqs)
    admitted = "fit" if all(stage.is_reserved for stage in stages) else f"floor({HEADROOM} * fit)"
    recommended = compute(
        "recommended max_num_seqs",
        f"min({admitted}, max_num_seqs)",
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
