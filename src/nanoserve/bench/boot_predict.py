"""What follows for a recorded boot from its model: the pool, its tokens, its concurrency.

Puts the planner's rules together for the engine and version of a record; keeps no formula of
its own.
"""

from dataclasses import dataclass, replace

from nanoserve.bench.boot_case import BootCase
from nanoserve.bench.boot_facts import UnsupportedRecordError
from nanoserve.errors import NanoserveError
from nanoserve.plan.device_weights import device_weight_bytes
from nanoserve.plan.engine_memory import (
    activation_bytes,
    graph_bytes,
    non_torch_bytes,
    pool_bytes,
    sglang_pool_bytes,
    unsloth_slots,
)
from nanoserve.plan.interval import Interval
from nanoserve.plan.kv_groups import CacheGroups, group_cache, without_windows
from nanoserve.plan.kv_layout import CacheFormat
from nanoserve.plan.sharding import plan_stages
from nanoserve.spec.kv_format import find_kv_format
from nanoserve.spec.model_shape import AttentionShape, LayerShape, ModelShape
from nanoserve.units import GIB, ceil_div, format_bytes

_LATENTS_SINCE = (0, 7, 1)  # vLLM pull request 12601; before, each head's K and V
_PADDED_HEAD = 256  # what heads of 192 were padded to then
_GROUPS_SINCE = (0, 10)  # before, every layer of vLLM kept every token
_ALIGNED_SINCE = (0, 21)  # states of delta nets come two a request since
_TOKENS_BY_LENGTH_SINCE = (0, 20)  # vLLM issue 40691
_VALUE_BYTES = {"fp8": 1, "int8": 1, "bf16": 2, "fp32": 4}
_SGLANG_CONTEXT_BYTES = GIB * 45 // 100


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
    if case.is_by_unsloth:
        slots = unsloth_slots(int(utilization * total) - weights)
        load = replace(load, max_num_seqs=slots, max_num_batched_tokens=load.max_model_len)
    activation = activation_bytes(case.profile, load)
    non_torch = non_torch_bytes(case.profile, load.tensor_parallel, load.has_fast_link)
    graphs = graph_bytes(case.profile, load.is_eager)
    doubt = weights_around(case, weights)
    around = non_torch + Interval(doubt.low - weights, 0, doubt.high - weights)
    left = pool_bytes(case.profile, int(utilization * total), weights, activation, around, graphs)
    return CasePrediction(left, weights, activation, non_torch, graphs)


def _sglang_pool(total: int, utilization: float, weights: int) -> CasePrediction:
    """Return SGLang's pool; nothing of a step comes off, its share is kept free for it."""
    before = total - _SGLANG_CONTEXT_BYTES
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
        return device_weight_bytes(
            case.shape, case.weight_format, case.tensor_parallel, case.pipeline_parallel
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
    if layout.num_groups > 1 and _version(case) >= _TOKENS_BY_LENGTH_SINCE:
        return layout.groups.logged_tokens(pool, case.load().max_model_len, layout.cache)
    num_blocks = pool // layout.groups.block_bytes
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
    return pool // layout.groups.block_bytes / blocks


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """A model's cache as the engine of a record lays it out.

    Attributes:
        groups: Its groups.
        cache: What they were made for.
        num_groups: How many draw from the pool.
    """

    groups: CacheGroups
    cache: CacheFormat
    num_groups: int


def cache_layout(case: BootCase) -> CacheLayout:
    """Lay a case's cache out.

    Raises:
        UnsupportedRecordError: A format of K and V, or a split pool, that is not known.
    """
    shape = _stage(case)
    version = _version(case)
    if case.profile.engine == "vllm":
        shape = _as_vllm_caches(shape, version)
    elif _is_mixed(shape):
        raise UnsupportedRecordError(kind="pool split by kind of layer", detail=case.profile.engine)
    if _has_windows(shape) and not _is_budget_known(case):
        raise UnsupportedRecordError(
            kind="token budget not stated", detail="windows hold a step beside theirs"
        )
    has_states = any(layer.state for layer in shape.layers)
    cache = CacheFormat(
        itemsize=_value_bytes(case.kv_cache_dtype),
        block_size=case.boot.block_size or case.profile.block_size,
        tp=case.tensor_parallel,
        max_num_batched_tokens=case.load().max_num_batched_tokens,
        num_states=2 if has_states and version >= _ALIGNED_SINCE else 1,
    )
    groups = group_cache(shape, cache)
    if groups.block_bytes == 0:
        raise UnsupportedRecordError(kind="no cache that grows", detail=shape.model_type)
    num_groups = sum(ceil_div(bucket.num_layers, groups.group_size) for bucket in groups.buckets)
    return CacheLayout(groups, cache, num_groups)


def _version(case: BootCase) -> tuple[int, ...]:
    return case.version or case.profile.since


def _as_vllm_caches(shape: ModelShape, version: tuple[int, ...]) -> ModelShape:
    if version < _LATENTS_SINCE:
        shape = _without_latents(shape)
    attentions = [layer.attention for layer in shape.layers if layer.attention]
    if version < _GROUPS_SINCE or any(one.kind == "chunked" for one in attentions):
        return without_windows(shape)
    return shape


def _without_latents(shape: ModelShape) -> ModelShape:
    """Return the model as engines without latent attention cached it: each head's K and V."""

    def widened(attention: AttentionShape | None) -> AttentionShape | None:
        if attention is None or attention.latent is None:
            return attention
        return AttentionShape(
            "full", attention.num_heads, attention.num_heads, _PADDED_HEAD, _PADDED_HEAD
        )

    layers: tuple[LayerShape, ...] = tuple(
        replace(layer, attention=widened(layer.attention)) for layer in shape.layers
    )
    return replace(shape, layers=layers)


def _is_mixed(shape: ModelShape) -> bool:
    return _has_windows(shape) or any(layer.state is not None for layer in shape.layers)


def _has_windows(shape: ModelShape) -> bool:
    attentions = (layer.attention for layer in shape.layers)
    return any(one is not None and one.span is not None for one in attentions)


def _is_budget_known(case: BootCase) -> bool:
    """Whether the step's tokens are stated, or follow from a card that is known."""
    return case.boot.max_num_batched_tokens is not None or case.total_bytes is not None


def _stage(case: BootCase) -> ModelShape:
    """Return the layers of the first stage, which has no fewer than any."""
    try:
        stages = plan_stages(case.shape, case.pipeline_parallel, case.tensor_parallel)
    except NanoserveError as error:
        raise UnsupportedRecordError(
            kind="ranks do not divide the model", detail=str(error)[:120]
        ) from None
    most = max(stages, key=lambda stage: stage.num_layers)
    layers = case.shape.layers[most.first_layer : most.first_layer + most.num_layers]
    return replace(case.shape, layers=layers)


def _value_bytes(kv_cache_dtype: str) -> int:
    """Return the bytes of a value of K and V; `fp8 (inferred)` is fp8."""
    name = kv_cache_dtype.split("(")[0].strip()
    try:
        found = find_kv_format(name).name
    except NanoserveError:
        raise UnsupportedRecordError(
            kind="KV format not known", detail=kv_cache_dtype[:40]
        ) from None
    if found.startswith("auto"):
        return 2
    if found not in _VALUE_BYTES:
        raise UnsupportedRecordError(kind="KV format with scales", detail=kv_cache_dtype[:40])
    return _VALUE_BYTES[found]
