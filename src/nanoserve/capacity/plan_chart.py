"""The numbers behind the pictures of a plan: the card as a stack, and what fits by length.

Pure, so that a picture can be tested without drawing it; who draws is `cli.plan_plot`.
"""

from dataclasses import dataclass

from nanoserve.capacity.budget_line import POOL
from nanoserve.capacity.plan_answer import PlanAnswer

_SHORTEST = 256  # tokens of the first length looked at
_LENGTHS_PER_DOUBLING = 4


@dataclass(frozen=True, slots=True)
class StackPart:
    """One part of the card.

    Attributes:
        name: What it is.
        num_bytes: Likely size; 0 for a pool that nothing is left for.
        low: The least that it may be.
        high: The most.
    """

    name: str
    num_bytes: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class LengthFit:
    """How many requests of a length run at once.

    Attributes:
        tokens: Prompt and output together.
        low: In the least pool that is likely.
        mid: In the likely one.
        high: In the most.
    """

    tokens: int
    low: int
    mid: int
    high: int


def stack_parts(plan: PlanAnswer) -> tuple[StackPart, ...]:
    """Return the parts of the deciding GPU from the first subtracted to the pool.

    They sum to the GPU's total, unless the parts before the pool are larger than it.
    """
    return tuple(
        StackPart(line.name, max(0, line.size.mid), max(0, line.size.low), max(0, line.size.high))
        for line in plan.lines
        if line.is_inside
    )


def missing_bytes(plan: PlanAnswer) -> int:
    """Return by how much the parts before the pool are larger than the GPU; 0 where not."""
    pool = next(line.size.mid for line in plan.lines if line.name == POOL)
    return max(0, -pool)


def fit_by_length(plan: PlanAnswer) -> tuple[LengthFit, ...]:
    """Return how many requests fit, by length up to the longest planned; none without a pool.

    Of all stages the one that holds the fewest.
    """
    paying = [stage for stage in plan.stages if not stage.cost.is_free]
    if plan.pool.mid <= 0 or not paying:
        return ()
    return tuple(
        LengthFit(
            tokens,
            min(int(stage.cost.requests(stage.pool.low, tokens).value) for stage in paying),
            min(int(stage.cost.requests(stage.pool.mid, tokens).value) for stage in paying),
            min(int(stage.cost.requests(stage.pool.high, tokens).value) for stage in paying),
        )
        for tokens in _lengths(plan.max_model_len)
    )


def _lengths(longest: int) -> list[int]:
    """Return lengths that grow by equal shares, the longest last."""
    lengths = []
    step = 0
    while (length := round(_SHORTEST * 2 ** (step / _LENGTHS_PER_DOUBLING))) < longest:
        lengths.append(length)
        step += 1
    return [*lengths, longest]
