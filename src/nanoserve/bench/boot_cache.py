"""How the engine and version of a record lay its model's cache out.

Picks among the planner's layouts; keeps no formula of its own.
"""

from dataclasses import dataclass, replace

from nanoserve.bench.boot_case import BootCase
from nanoserve.bench.boot_facts import UnsupportedRecordError
from nanoserve.capacity.kv_groups import CacheGroups, group_cache
from nanoserve.capacity.vllm_layers import as_vllm_caches, states_per_request
from nanoserve.errors import NanoserveError
from nanoserve.plan.kv_layout import CacheFormat
from nanoserve.plan.sharding import plan_stages
from nanoserve.spec.kv_format import KVFormat, find_kv_format
from nanoserve.spec.model_shape import ModelShape
from nanoserve.units import ceil_div

_VALUE_BYTES = {"fp8": 1, "int8": 1, "bf16": 2, "fp32": 4, "auto (16 bits)": 2}


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """A model's cache as the engine of a record lays it out.

    Attributes:
        groups: Its groups.
        cache: What they were made for.
        num_groups: How many draw from the pool.
        scale: What a value takes of the bytes in `cache`: more than 1 with scales beside it.
    """

    groups: CacheGroups
    cache: CacheFormat
    num_groups: int
    scale: float = 1.0

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        return round(self.groups.block_bytes * self.scale)


def cache_layout(case: BootCase) -> CacheLayout:
    """Lay a case's cache out.

    Raises:
        UnsupportedRecordError: A format of K and V, or a split pool, that is not known.
    """
    shape = _stage(case)
    version = release_of(case)
    if case.profile.engine == "vllm":
        shape = as_vllm_caches(shape, version)
    elif _is_mixed(shape):
        raise UnsupportedRecordError(kind="pool split by kind of layer", detail=case.profile.engine)
    if _has_windows(shape) and not _is_budget_known(case):
        raise UnsupportedRecordError(
            kind="token budget not stated", detail="windows hold a step beside theirs"
        )
    has_states = any(layer.state for layer in shape.layers)
    stored = _kv_format(case.kv_cache_dtype)
    itemsize = _VALUE_BYTES.get(stored.name, 1)
    cache = CacheFormat(
        itemsize=itemsize,
        block_size=case.boot.block_size or case.profile.block_size,
        tp=case.tensor_parallel,
        max_num_batched_tokens=case.load().max_num_batched_tokens,
        num_states=states_per_request(shape, version),
    )
    groups = group_cache(shape, cache)
    if groups.block_bytes == 0:
        raise UnsupportedRecordError(kind="no cache that grows", detail=shape.model_type)
    num_groups = sum(ceil_div(bucket.num_layers, groups.group_size) for bucket in groups.buckets)
    scale = _scale(shape, stored) if stored.name not in _VALUE_BYTES else 1.0
    if scale != 1.0 and has_states:
        raise UnsupportedRecordError(kind="KV format with scales beside states", detail=stored.name)
    return CacheLayout(groups, cache, num_groups, scale)


def release_of(case: BootCase) -> tuple[int, ...]:
    """Return the release of a case, or the first of those its rules hold for."""
    return case.version or case.profile.since


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


def _kv_format(kv_cache_dtype: str) -> KVFormat:
    """Return how K and V are stored; `fp8 (inferred)` is fp8."""
    try:
        return find_kv_format(kv_cache_dtype.split("(")[0])
    except NanoserveError:
        raise UnsupportedRecordError(
            kind="KV format not known", detail=kv_cache_dtype[:40]
        ) from None


def _scale(shape: ModelShape, stored: KVFormat) -> float:
    """Return the bytes of a value of K and V, scales included; layers are as wide as the first."""
    first = next(layer.attention for layer in shape.layers if layer.attention is not None)
    if first.latent is None:
        return stored.head_bytes(first.head_dim) / first.head_dim
    rank, rope_dim = first.latent.kv_lora_rank, first.latent.rope_dim
    return stored.latent_bytes(rank, rope_dim) / (rank + rope_dim)
