"""The memory of one pipeline stage's GPU, as lines that sum to the total.

Owns the form of a divided GPU. What the lines are, each engine's division says:
`stage_budget` for most, `own_budget` for our own server.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nanoserve.capacity.cache_cost import CacheCost
from nanoserve.capacity.interval import Interval
from nanoserve.capacity.rank_weights import RankWeights
from nanoserve.plan.formula import Formula, Number, compute
from nanoserve.spec.model_shape import ModelShape

POOL = "KV pool"
KEPT_BACK = "kept back"
LEFT_OVER = "left over"  # beside a pool that follows the slots
NOTHING = Interval.exactly(0)


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One part of a GPU's memory.

    Attributes:
        name: What it is.
        size: Its bytes.
        formula: How the likely figure comes about; None where it is what is left.
        is_inside: Whether it comes off the budget; else it must fit in what is kept back.
    """

    name: str
    size: Interval
    formula: Formula | None = None
    is_inside: bool = True


@dataclass(frozen=True, slots=True)
class StageBudget:
    """The memory of one GPU of a stage.

    Attributes:
        weights: What the rank holds.
        shape: The model with the layers of this stage alone.
        total_bytes: The GPU's memory.
        lines: Its parts in the order subtracted, the pool last; those inside sum to the total.
        pool: What is left for keys, values and states; negative where nothing is.
        cost: What requests cost in it.
        is_reserved: Whether the pool has room for every slot's longest request, and no more.
        refusal: What the engine says where it refuses to start so; empty where it starts, or
            where nobody could ask it.
        is_loadable: Whether the weights can be loaded, as far as the engine was asked; where
            not, `refusal` says why.
        load_peak: What loading holds at its highest, the weights among it; given back before
            there is a pool, so no part of the total. None where that is the weights alone,
            or nobody knows.
    """

    weights: RankWeights
    shape: ModelShape
    total_bytes: int
    lines: tuple[BudgetLine, ...]
    pool: Interval
    cost: CacheCost
    is_reserved: bool = False
    refusal: str = ""
    is_loadable: bool = True
    load_peak: Formula | None = None

    @property
    def usable_bytes(self) -> int:
        """What the engine may hold: the total less what is kept back."""
        return self.total_bytes - sum(
            line.size.mid for line in self.lines if line.name == KEPT_BACK
        )


def pool_formula(total_bytes: int, lines: Iterable[BudgetLine]) -> Formula:
    """Return the pool as what the lines before it leave."""
    symbols: dict[str, Number] = {"total": total_bytes}
    for line in lines:
        symbols[line.name.replace(" ", "_")] = line.size.mid
    return compute(POOL, " - ".join(symbols), "bytes", symbols)
