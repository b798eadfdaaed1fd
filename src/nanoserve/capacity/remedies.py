"""The smallest changes after which a plan serves, each planned again.

Owns which changes there are and in what order they hurt: first flags that cost nothing but
room for error, then shorter requests, coarser keys and values, coarser weights, more GPUs.
Two changes are only offered where no single one will do.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from nanoserve.capacity.engine_formats import engine_weight_format
from nanoserve.capacity.gpu_counts import gpu_counts, gpu_words, spread_over
from nanoserve.capacity.own_formats import own_kv_names, own_weight_names
from nanoserve.capacity.own_slots import served_at_once, with_slots_for
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.errors import NanoserveError
from nanoserve.spec.quant_spec import WeightFormat

SAFE_UTILIZATION = 0.95  # past it a peak under load finds no memory after a clean start
_SMALL_BUDGET = 2048  # tokens of a step: half of what large cards are given by default
_STEP = 1024  # tokens; a proposed length is a multiple of it where it can be
_MOST_GPUS = 64
_MOST_PAIRS = 3
# Weights, coarsest last, that an engine takes; a checkpoint of them may have to be found.
_WEIGHTS: dict[str, tuple[str, ...]] = {"llama.cpp": ("Q8_0", "Q4_K_M")}
_ANY_WEIGHTS = ("fp8", "awq")
# Keys and values in 8 bits, as each engine spells them; others have none.
_EIGHT_BITS_SINCE = (0, 5, 4)  # the first rules that hold for no release without
_KV = {"vllm": ("fp8",), "sglang": ("fp8",), "tensorrt-llm": ("fp8",), "llama.cpp": ("q8_0",)}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to ask for instead.

    Attributes:
        words: As flags of the planner.
        price: What is given up.
        fields: Of the query.
    """

    words: str
    price: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that was planned again.

    Attributes:
        words: As flags of the planner.
        price: What is given up.
        plan: With the change.
        pool_delta: Bytes that the pool of the deciding GPU gains; negative where it shrinks.
    """

    words: str
    price: str
    plan: PlanAnswer
    pool_delta: int


def remedies(plan: PlanAnswer) -> tuple[Remedy, ...]:
    """Return the changes that make a plan serve, the cheapest first; none if it does.

    Single changes, and pairs of them where no single one is enough.
    """
    if plan.fits:
        return ()
    changes = tuple(_changes(plan))
    served = _served(plan, ((change,) for change in changes))
    if served:
        return served
    pairs = (pair for pair in combinations(changes, 2) if _go_together(pair))
    return _served(plan, pairs)[:_MOST_PAIRS]


def kv_spellings(query: PlanQuery) -> tuple[str, ...]:
    """Return how the engine is asked for keys and values in 8 bits, most bits first."""
    engine = query.profile.engine
    if engine == "nanoserve":
        return own_kv_names(query.gpu)
    return () if _is_before_eight_bits(query) else _KV[engine]


def _is_before_eight_bits(query: PlanQuery) -> bool:
    """Whether vLLM may not have fp8 yet: its cache has since 0.4.1, weights since 0.4.3."""
    return query.profile.engine == "vllm" and query.profile.since < _EIGHT_BITS_SINCE


def coarser_weights(plan: PlanAnswer) -> tuple[str, ...]:
    """Return the formats with fewer bits than the plan's, most bits first.

    fp8 becomes int8 on a GPU without units for it; both are 8 bits in memory.
    """
    engine, gpu = plan.query.profile.engine, plan.query.gpu
    names = _WEIGHTS.get(engine, _ANY_WEIGHTS)
    if engine == "nanoserve":
        names = own_weight_names(gpu)
    if _is_before_eight_bits(plan.query):
        names = tuple(name for name in names if name != "fp8")
    spelled = tuple("int8" if name == "fp8" and not gpu.has_fp8_units else name for name in names)
    stored = plan.choices.weight_format.bits_per_weight()
    return tuple(
        name
        for name in spelled
        if coarser_format(plan.query, name).bits_per_weight() < 0.9 * stored
    )


def coarser_format(query: PlanQuery, name: str) -> WeightFormat:
    """Return a format that is coarser than the checkpoint's, so that it has a name and bits."""
    return engine_weight_format(query.profile.engine, name) or query.model.weight_format


def _served(plan: PlanAnswer, offers: Iterable[tuple[Change, ...]]) -> tuple[Remedy, ...]:
    """Plan each offer; once one with more GPUs serves, still more of them are no news."""
    served: list[Remedy] = []
    has_gpus = False
    for changes in offers:
        adds_gpus = any("num_gpus" in change.fields for change in changes)
        if adds_gpus and has_gpus:
            continue
        remedy = _planned(plan, changes)
        if remedy is not None:
            served.append(remedy)
            has_gpus = has_gpus or adds_gpus
    return tuple(served)


def _changes(plan: PlanAnswer) -> Iterator[Change]:
    query = plan.query
    yield from _free_changes(plan)
    yield from _slot_changes(plan)
    yield from _length_changes(plan)
    for kv in kv_spellings(query) if plan.choices.kv_format.name in ("bf16", "fp32") else ():
        price = "keys and values in 8 bits"
        yield Change(f"--kv-cache-dtype {kv}", price, {"kv_cache_dtype": kv})
    for name in coarser_weights(plan):
        coarser = coarser_format(query, name)
        price = f"weights in {coarser.bits_per_weight():.1f} bits"
        yield Change(f"--quantization {name}", price, {"weight_format": coarser})
    held = query.num_stages if query.splits_layers else query.ranks
    for count in gpu_counts(query, _MOST_GPUS):
        if count > held:
            wider = spread_over(query, count)
            fields = {"num_gpus": wider.num_gpus, "tp": wider.tp, "pp": wider.pp}
            yield Change(gpu_words(wider), f"{wider.num_gpus} GPUs", fields)


def _free_changes(plan: PlanAnswer) -> Iterator[Change]:
    query = plan.query
    if query.profile.engine in ("vllm", "sglang") and plan.utilization < SAFE_UTILIZATION:
        price = "less room for a peak while serving"
        fields = {"utilization": SAFE_UTILIZATION}
        yield Change(f"--gpu-memory-utilization {SAFE_UTILIZATION}", price, fields)
    if plan.choices.max_num_batched_tokens > _SMALL_BUDGET and not plan.stage.is_reserved:
        price = "prompts are read in smaller pieces"
        fields = {"max_num_batched_tokens": _SMALL_BUDGET}
        yield Change(f"--max-num-batched-tokens {_SMALL_BUDGET}", price, fields)
    if not query.is_eager and query.profile.graphs != "none" and not query.gpu.is_host:
        yield Change("--enforce-eager", "slower decode steps", {"is_eager": True})


def _slot_changes(plan: PlanAnswer) -> Iterator[Change]:
    """Fewer requests at once, where each slot's longest request is set aside."""
    if not plan.stage.refusal or not plan.stage.is_reserved:
        return
    most = with_slots_for(answer(replace(plan.query, max_num_seqs=None)))
    slots = min(served_at_once(most), plan.choices.max_num_seqs - 1)
    if slots > 0:
        price = f"{slots} requests at once, others wait"
        yield Change(f"--max-num-seqs {slots}", price, {"max_num_seqs": slots})


def _length_changes(plan: PlanAnswer) -> Iterator[Change]:
    """Shorter requests than were asked for, where some length fits."""
    asked, fits = plan.query.max_model_len, plan.longest_fit
    if plan.stage.refusal and plan.stage.is_reserved:  # every slot's, not one request's
        fits, asked = int(plan.tokens.mid / plan.choices.max_num_seqs), plan.max_model_len
    if asked is None or not 0 < fits < asked:
        return
    length = fits // _STEP * _STEP or fits
    price = f"no request longer than {length:,} tokens"
    yield Change(f"--max-model-len {length}", price, {"max_model_len": length})


def _go_together(pair: tuple[Change, ...]) -> bool:
    """Two weights, or two numbers of GPUs, are no pair."""
    return not set(pair[0].fields) & set(pair[1].fields)


def _planned(plan: PlanAnswer, changes: tuple[Change, ...]) -> Remedy | None:
    """Plan again with the changes; None where the engine refuses that or it does not serve."""
    fields: dict[str, Any] = {}
    for change in changes:
        fields |= change.fields
    try:
        changed = answer(replace(plan.query, **fields))
    except NanoserveError:
        return None
    if not changed.fits:
        return None
    words = " ".join(change.words for change in changes)
    price = ", ".join(change.price for change in changes)
    return Remedy(words, price, changed, changed.pool.mid - plan.pool.mid)
