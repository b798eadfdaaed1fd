"""How vLLM lays a hybrid model's cache out: groups of layers, one pool of equal pages.

Layers that cache alike are a bucket. Buckets are cut into groups of one size, padded where they
do not divide; every group draws from the same blocks, each `group size` pages. So a request
costs more than the sum of its layers. Knows no engine options beyond `CacheFormat`.

Source: vLLM 0.32, v1/core/kv_cache_utils.py and platforms/interface.py.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nanoserve.plan.kv_layout import (
    CacheFormat,
    Holding,
    attention_bytes_per_token,
    state_bytes,
    tokens_held,
)
from nanoserve.spec.model_shape import AttentionShape, LayerShape, ModelShape, StateShape
from nanoserve.units import ceil_div, round_up

_MOST_PADDING = 1.5  # where the largest bucket is within this of the smallest, it is the size


@dataclass(frozen=True, slots=True)
class Bucket:
    """Layers that cache alike.

    Attributes:
        part: What they keep.
        num_layers: How many they are.
        block_size: Tokens of one page; all of a request's for a state.
        page_bytes: Bytes of one page of one layer, padding included.
    """

    part: AttentionShape | StateShape
    num_layers: int
    block_size: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class CacheGroups:
    """A cache in groups.

    Attributes:
        buckets: The kinds of layers.
        group_size: Layers of every group, padding included.
        page_bytes: Bytes of one page, the same for all layers.
    """

    buckets: tuple[Bucket, ...]
    group_size: int
    page_bytes: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        return self.group_size * self.page_bytes

    @property
    def num_padding_layers(self) -> int:
        """Layers that exist to fill groups up."""
        return sum(-bucket.num_layers % self.group_size for bucket in self.buckets)

    def request_blocks(
        self,
        num_tokens: int,
        cache: CacheFormat,
        num_encoder_tokens: int = 0,
        holding: Holding = "admitted",
    ) -> int:
        """Return the blocks that one request is admitted with, or holds.

        Args:
            num_tokens: Its length.
            cache: What the groups were made for.
            num_encoder_tokens: Tokens that cross-attention keeps.
            holding: The worst case that vLLM sets aside and logs, or what decoding holds.
        """
        blocks = 0
        for bucket in self.buckets:
            num_groups = ceil_div(bucket.num_layers, self.group_size)
            pages = _pages(bucket, num_tokens, cache, num_encoder_tokens, holding)
            blocks += num_groups * pages
        return blocks

    def request_bytes(
        self, num_tokens: int, cache: CacheFormat, num_encoder_tokens: int = 0
    ) -> int:
        """Return the bytes that one request is admitted with; see `request_blocks`."""
        return self.request_blocks(num_tokens, cache, num_encoder_tokens) * self.block_bytes

    def logged_tokens(
        self, pool_bytes: int, num_tokens: int, cache: CacheFormat, num_encoder_tokens: int = 0
    ) -> int:
        """Return what vLLM logs as the tokens of a pool: the requests of `num_tokens`, times it.

        So the figure of a hybrid model depends on the longest request that it is served with.

        Source: vLLM 0.32, get_max_concurrency_for_kv_cache_config.
        Example: Qwen3.6-35B-A3B with fp8 K and V has 569,878 in 6.01 GiB at 131,072 tokens.
        """
        num_blocks = pool_bytes // self.block_bytes
        return num_blocks * num_tokens // self.request_blocks(num_tokens, cache, num_encoder_tokens)


def _pages(
    bucket: Bucket,
    num_tokens: int,
    cache: CacheFormat,
    num_encoder_tokens: int,
    holding: Holding,
) -> int:
    """Return the pages of one layer for a request: of states one, and one per guessed token."""
    if isinstance(bucket.part, StateShape):
        return cache.num_states + cache.num_spec_tokens
    paged = replace(cache, block_size=bucket.block_size)
    held = tokens_held(bucket.part, num_tokens, paged, holding, num_encoder_tokens)
    return held // bucket.block_size


def without_windows(shape: ModelShape) -> ModelShape:
    """Return the model as an engine without hybrid groups caches it: every layer keeps all.

    So does vLLM with `--disable-hybrid-kv-cache-manager`, with some KV connectors, and, unless
    told otherwise, wherever layers attend in chunks.
    """

    def promoted(layer: LayerShape) -> LayerShape:
        if layer.attention is None or layer.attention.span is None:
            return layer
        return replace(layer, attention=replace(layer.attention, kind="full", span=None))

    return replace(shape, layers=tuple(map(promoted, shape.layers)))


def group_cache(shape: ModelShape, cache: CacheFormat) -> CacheGroups:
    """Lay a model's cache out in groups, as vLLM's hybrid manager does.

    Example: Gemma-3-27B is 1 group of full layers and 6 of sliding ones, with 8 padding layers.
    """
    attentions = Counter(_cached_attentions(shape))
    states = Counter(layer.state for layer in shape.layers if layer.state is not None)
    block_size = hybrid_block_size(shape, cache) if states else cache.block_size
    page_bytes = max(
        (block_size * attention_bytes_per_token(part, cache) for part in attentions),
        default=max((state_bytes(state, cache) for state in states), default=0),
    )
    buckets = [
        Bucket(part, count, _fitting_block(part, block_size, page_bytes, cache), page_bytes)
        for part, count in attentions.items()
    ]
    buckets += [Bucket(state, count, 0, page_bytes) for state, count in states.items()]
    return CacheGroups(tuple(buckets), _group_size([b.num_layers for b in buckets]), page_bytes)


def _cached_attentions(shape: ModelShape) -> Iterator[AttentionShape]:
    """Return the attention of every layer that keeps K and V of its own."""
    for layer in shape.layers:
        for part in (layer.attention, layer.cross):
            if part is not None and part.shares_with is None:
                yield part


def _fitting_block(
    part: AttentionShape, block_size: int, page_bytes: int, cache: CacheFormat
) -> int:
    """Return the block size with which smaller pages become as large, if they divide it."""
    own_bytes = block_size * attention_bytes_per_token(part, cache)
    return block_size * (page_bytes // own_bytes) if page_bytes % own_bytes == 0 else block_size


def _group_size(counts: list[int]) -> int:
    """Return the smallest bucket, or the largest where all are nearly as large."""
    if not counts:
        return 0
    return max(counts) if max(counts) < _MOST_PADDING * min(counts) else min(counts)


def hybrid_block_size(shape: ModelShape, cache: CacheFormat) -> int:
    """Return the block size at which a page of attention is no smaller than a state.

    Example: Qwen3-Next-80B in bf16 on one rank takes blocks of 544 tokens, 1,056 with a
    float32 state.
    """
    per_token = [attention_bytes_per_token(part, cache) for part in _cached_attentions(shape)]
    largest = max((state_bytes(s.state, cache) for s in shape.layers if s.state), default=0)
    if not per_token:
        return cache.block_size
    tokens = ceil_div(largest, max(per_token))
    return max(cache.block_size, round_up(tokens, cache.block_size))
