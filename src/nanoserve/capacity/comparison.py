"""Many plans side by side: precisions x KV formats x GPUs x ranks, and which saving pays more.

Owns the order and the refusals: a combination that cannot be planned is a row that says why.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from nanoserve.capacity.own_slots import with_slots_for
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.capacity.remedies import coarser_format, coarser_weights, kv_spellings
from nanoserve.errors import NanoserveError, OptionError
from nanoserve.spec.gpu_names import GpuGroup
from nanoserve.spec.quant_spec import WeightFormat

MAX_PLANS = 2000


@dataclass(frozen=True, slots=True)
class Axes:
    """What is varied; an empty axis leaves the query's own choice.

    Attributes:
        gpus: GPUs with their number.
        weight_formats: How weights are stored; None as in the checkpoint, to the byte of its
            files where they are at hand.
        kv_cache_dtypes: An engine's spellings.
        tps: GPUs that share each layer.
    """

    gpus: tuple[GpuGroup, ...] = ()
    weight_formats: tuple[WeightFormat | None, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ()
    tps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """One combination.

    Attributes:
        gpus: GPUs with their number.
        weight_name: How weights are stored.
        kv_name: How keys and values are.
        tp: GPUs that share each layer; 0 where that was refused before it was known.
        plan: The plan; None where it was refused.
        refusal: Why there is none.
    """

    gpus: GpuGroup
    weight_name: str
    kv_name: str
    tp: int
    plan: PlanAnswer | None
    refusal: str = ""

    @property
    def requests(self) -> int:
        """Requests of the workload at once on all GPUs: every copy's together."""
        if self.plan is None:
            return 0
        fits = max(0, self.plan.fit.p95.mid)
        if self.plan.query.profile.engine == "nanoserve":  # runs no more than its slots
            fits = min(fits, self.plan.choices.max_num_seqs)
        return self.plan.query.num_replicas * fits


@dataclass(frozen=True, slots=True)
class SavingsCompared:
    """Keys and values in 8 bits against weights in 8 bits: which holds more tokens.

    The first divides what a token costs; the second adds what the weights free to the pool.
    They are equal at a pool P with P * r / c = (P + freed) / c: at `freed / (r - 1)`, where r
    is how many times as many tokens 8-bit KV holds (2 of fp8, 1.88 of q8_0 with its scales).

    Attributes:
        base: As asked.
        kv: With keys and values in 8 bits.
        weights: With weights in 8 bits.
        freed_bytes: Bytes that 8-bit weights add to the pool of the deciding GPU.
    """

    base: PlanAnswer
    kv: PlanAnswer
    weights: PlanAnswer
    freed_bytes: int

    @property
    def kv_gain(self) -> int:
        """Tokens that the first adds."""
        return self.kv.tokens.mid - self.base.tokens.mid

    @property
    def weights_gain(self) -> int:
        """Tokens that the second adds."""
        return self.weights.tokens.mid - self.base.tokens.mid

    @property
    def break_even_bytes(self) -> int | None:
        """The pool at which both add as many tokens; None where there is none to divide."""
        if self.base.tokens.mid <= 0 or self.kv_gain <= 0:
            return None
        return self.freed_bytes * self.base.tokens.mid // self.kv_gain

    @property
    def winner(self) -> str:
        """The one that adds more."""
        return "8-bit KV" if self.kv_gain > self.weights_gain else "8-bit weights"


def compare(base: PlanQuery, axes: Axes) -> tuple[ComparedPlan, ...]:
    """Plan every combination, GPUs slowest; what two of them come to alike is one row.

    Raises:
        OptionError: There are more than `MAX_PLANS`.
    """
    own = GpuGroup(base.num_gpus, base.gpu)
    groups: Sequence[GpuGroup] = axes.gpus or (own,)
    formats: Sequence[WeightFormat | None] = axes.weight_formats or (base.weight_format,)
    dtypes: Sequence[str] = axes.kv_cache_dtypes or (base.kv_cache_dtype,)
    tps: Sequence[int | None] = axes.tps or (base.tp,)
    num_plans = len(groups) * len(formats) * len(dtypes) * len(tps)
    if num_plans > MAX_PLANS:
        message = f"{num_plans:,} plans are asked for; at most {MAX_PLANS:,} are compared at once."
        raise OptionError(message)
    rows = (
        _compared(base, group, stored, dtype, tp)
        for group, tp, stored, dtype in product(groups, tps, formats, dtypes)
    )
    return tuple({_identity(row): row for row in rows}.values())


def default_axes(plan: PlanAnswer) -> Axes:
    """Return what is worth comparing where nobody says: precisions and KV formats."""
    coarser = (coarser_format(plan.query, name) for name in coarser_weights(plan))
    formats = (plan.query.weight_format, *coarser)
    return Axes(weight_formats=formats, kv_cache_dtypes=("auto", *kv_spellings(plan.query)))


def compare_savings(plan: PlanAnswer) -> SavingsCompared | None:
    """Return 8-bit KV against 8-bit weights; None where a plan has no tokens or one already.

    None too where the pool follows the slots and not what is left: neither adds a token.

    Example: Llama 3 8B on one H100 has a pool of 57 GiB and frees 7 with 8-bit weights: 8-bit
    KV wins. The 70B on two frees 33 of 61 GiB on each: weights come close, and win on smaller
    cards.
    """
    kv, names = kv_spellings(plan.query), coarser_weights(plan)
    is_full = plan.choices.weight_format.bits_per_weight() >= 16
    is_plain = plan.choices.kv_format.name == "bf16"
    if not kv or not names or not is_full or not is_plain or plan.stage.is_reserved:
        return None
    with_kv = answer(replace(plan.query, kv_cache_dtype=kv[0]))
    coarser = coarser_format(plan.query, names[0])
    with_weights = answer(replace(plan.query, weight_format=coarser))
    freed = with_weights.pool.mid - plan.pool.mid
    if with_weights.pool.mid <= 0:
        return None
    return SavingsCompared(plan, with_kv, with_weights, freed)


def _compared(
    base: PlanQuery, group: GpuGroup, stored: WeightFormat | None, dtype: str, tp: int | None
) -> ComparedPlan:
    is_own = base.profile.engine == "nanoserve"
    name = "none" if is_own and stored is None else (stored or base.model.weight_format).name
    query = replace(base, gpu=group.gpu, weight_format=stored, kv_cache_dtype=dtype)
    try:
        num_gpus = max(group.num_gpus, (tp or 1) * base.pp)
        plan = with_slots_for(answer(replace(query, num_gpus=num_gpus, tp=tp)))
    except NanoserveError as error:
        return ComparedPlan(group, name, dtype, tp or 0, None, str(error))
    gpus = GpuGroup(plan.query.num_gpus, group.gpu)
    name = plan.choices.weight_format.name if is_own else name
    return ComparedPlan(gpus, name, plan.choices.kv_format.name, plan.choices.tp, plan)


def _identity(row: ComparedPlan) -> tuple[object, ...]:
    """Return what makes a row: `2x h100` and `h100` with two ranks are the same machine."""
    gpu = row.gpus.gpu
    return gpu, row.gpus.num_gpus, row.tp, row.weight_name, row.kv_name, row.refusal


def winners(rows: Sequence[ComparedPlan]) -> Iterator[ComparedPlan]:
    """Yield the rows that serve, most requests of the workload for each GPU first."""
    served = [row for row in rows if row.plan is not None and row.plan.fits]
    yield from sorted(served, key=lambda row: row.requests / row.gpus.num_gpus, reverse=True)
