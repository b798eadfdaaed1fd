"""What follows for a recorded boot from its model: the pool, its tokens, its concurrency.

Puts the planner's rules together for the engine and version of a record; keeps no formula of
its own.
"""

from dataclasses import dataclass, replace

from nanoserve.bench.boot_cache import cache_layout, release_of
from nanoserve.bench.boot_case import BootCase
from nanoserve.bench.boot_facts import UnsupportedRecordError
from nanoserve.capacity.engine_memory import (
    activation_bytes,
    context_bytes,
    non_torch_bytes,
    pool_bytes,
    sglang_pool_bytes,
    unsloth_slots,
)
from nanoserve.capacity.interval import Interval
from nanoserve.capacity.rank_weights import heaviest_rank_bytes
from nanoserve.capacity.recorded_graphs import graph_bytes
from nanoserve.errors import NanoserveError
from nanoserve.spec.quant_spec import FULL_PRECISION
from nanoserve.units import GIB, format_bytes

_TOKENS_BY_LENGTH_SINCE = (0, 20)  # vLLM issue 40691


@dataclass(frozen=True, slots=True)
class CasePrediction:
    """A pool and the parts that were taken off.

    Attributes:
        pool: What is left.
        weights: On the fattest GPU.
        activation: The profiled step's peak.
        non_torch: Held outside the allocator.
        graphs: What recorded steps take of the budget.
    """

    pool: Interval
    weights: int
    activation: Interval
    non_torch: Interval
    graphs: Interval


def predict_pool(case: BootCase) -> CasePrediction:
    """Predict the pool from the device's memory, the utilization and the model.

    Raises:
        UnsupportedRecordError: One of the three is not known, or the engine's rule is not.
    """
    if case.has_own_budget:
        raise UnsupportedRecordError(kind="fork with a budget of its own", detail="pool not sized")
    total = case.total_bytes
    if total is None:
        raise UnsupportedRecordError(
            kind="no device memory", detail="neither logged nor a card of the table"
        )
    utilization = case.boot.utilization
    if utilization is None:
        utilization = _default_utilization(case)
    weights = predict_weights(case)
    _check_assumed(case, int(utilization * total), weights)
    if case.profile.engine == "sglang":
        return _sglang_pool(total, utilization, weights)
    if case.profile.engine != "vllm":
        raise UnsupportedRecordError(
            kind="no rule from a share to a pool", detail=case.profile.engine
        )
    load = case.load()
    requested = int(utilization * total)
    if case.is_by_unsloth:
        # It asks for a share of what is free, and passes that on as one of the total.
        requested = int(utilization * (total - context_bytes(total)))
        slots = unsloth_slots(requested - weights)
        load = replace(load, max_num_seqs=slots, max_num_batched_tokens=load.max_model_len)
    activation = activation_bytes(case.profile, load)
    non_torch = non_torch_bytes(
        case.profile, load.tensor_parallel, load.has_fast_link, is_rocm=load.is_rocm
    )
    graphs = graph_bytes(case.profile, load.max_num_seqs, load.num_layers, is_eager=load.is_eager)
    doubt = weights_around(case, weights)
    around = non_torch + Interval(doubt.low - weights, 0, doubt.high - weights)
    left = pool_bytes(case.profile, requested, weights, activation, around, graphs)
    return CasePrediction(left, weights, activation, non_torch, graphs)


def _sglang_pool(total: int, utilization: float, weights: int) -> CasePrediction:
    """Return SGLang's pool; nothing of a step comes off, its share is kept free for it."""
    before = total - context_bytes(total)
    pool = sglang_pool_bytes(before, before - weights, utilization)
    spread = GIB // 2 + weights // 50
    nothing = Interval.exactly(0)
    around = Interval(pool - spread, pool, pool + spread)
    return CasePrediction(around, weights, nothing, nothing, nothing)


def _default_utilization(case: BootCase) -> float:
    if case.profile.utilization is None or case.version is None:
        raise UnsupportedRecordError(
            kind="no utilization", detail="and no release that has a default"
        )
    return case.profile.utilization


def _check_assumed(case: BootCase, requested: int, weights: int) -> None:
    """Refuse a card or a utilization taken for granted that what was logged does not fit in."""
    held = (case.boot.weight_bytes or weights) + max(0, case.boot.pool_bytes or 0)
    if held > requested and {"utilization", "memory"} & {*case.assumed}:
        detail = f"{format_bytes(held)} are held of {format_bytes(requested)}"
        raise UnsupportedRecordError(kind="not the default utilization or card", detail=detail)


def predict_weights(case: BootCase) -> int:
    """Predict the weights on the fattest GPU.

    Raises:
        UnsupportedRecordError: Their format is not known, or the ranks do not divide them.
    """
    if isinstance(case.weight_format, UnsupportedRecordError):
        raise case.weight_format
    if not case.is_divided:
        raise UnsupportedRecordError(
            kind="GPUs that share the model not stated", detail=case.shape.model_type
        )
    try:
        return heaviest_rank_bytes(
            case.shape,
            case.weight_format or FULL_PRECISION,
            case.tensor_parallel,
            case.pipeline_parallel,
        )
    except NanoserveError as error:
        raise UnsupportedRecordError(
            kind="ranks do not divide the model", detail=str(error)[:120]
        ) from None


def weights_around(case: BootCase, weights: int) -> Interval:
    """Return weights with what they may be off by.

    Rotary tables of several bases, towers loaded with more than their parameters; of quantised
    ones layers left in 16 bits and the kernels' padding.
    """
    if case.weight_format is None:
        return Interval.scaled((0.995, 1, 1.08 if case.load().sees_images else 1.02), weights)
    most = 1.1 if "weight format" in case.assumed else 1.05
    return Interval.scaled((0.97, 1, most), weights)


def predict_tokens(case: BootCase, pool: int) -> int:
    """Return the tokens that an engine logs for a pool of that size.

    Raises:
        UnsupportedRecordError: The engine divides the pool in a way that is not known.
    """
    layout = cache_layout(case)
    if layout.num_groups > 1 and release_of(case) >= _TOKENS_BY_LENGTH_SINCE:
        plain = int(pool / layout.scale)
        return layout.groups.logged_tokens(plain, case.load().max_model_len, layout.cache)
    num_blocks = pool // layout.block_bytes
    return num_blocks // layout.num_groups * layout.cache.block_size


def predict_concurrency(case: BootCase, pool: int) -> float:
    """Return the requests of the longest length that a pool holds.

    Raises:
        UnsupportedRecordError: As `predict_tokens`; or the record has no longest length.
    """
    if case.boot.max_model_len is None:
        raise UnsupportedRecordError(kind="no longest length", detail="the record does not say it")
    layout = cache_layout(case)
    blocks = layout.groups.request_blocks(case.boot.max_model_len, layout.cache)
    return pool // layout.block_bytes / blocks
