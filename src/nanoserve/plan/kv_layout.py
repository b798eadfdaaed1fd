"""What a cache costs, layer by layer: bytes per token, bytes per request, tokens held.

The only place that multiplies layers by bytes. Pure arithmetic on shapes, for one rank; how an
engine groups and pads layers is in `kv_groups`, what ranks share in `sharding`.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from nanoserve.plan.formula import Formula, compute
from nanoserve.plan.sharding import groups_on_rank
from nanoserve.spec.kv_format import KVFormat
from nanoserve.spec.model_shape import (
    AttentionShape,
    LatentShape,
    LayerShape,
    ModelShape,
    StateShape,
)
from nanoserve.units import round_up

Holding = Literal["steady", "admitted"]
_STATE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_INDEX_SCALE_VALUES = 128  # an indexer's key is fp8 with a float32 scale per so many values


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """How a cache is stored and shared.

    Attributes:
        itemsize: Bytes of one value of K, V or a latent.
        state_itemsize: Bytes of one value of a state whose dtype the model does not fix, and of
            the convolutions before states.
        block_size: Tokens per block.
        tp: Tensor-parallel ranks.
        max_num_batched_tokens: Most tokens of one step, which a window holds beside its own.
        num_spec_tokens: Tokens guessed ahead, for which convolutions remember more.
        num_states: States of one request in each recurrent layer: 2 where vLLM aligns them
            with blocks to cache prefixes.
        kv_format: How K and V are stored where a value's bytes do not say it: scales among
            them, blocks; None for `itemsize` bytes each.
    """

    itemsize: int = 2
    state_itemsize: int = 2
    block_size: int = 16
    tp: int = 1
    max_num_batched_tokens: int = 8192
    num_spec_tokens: int = 0
    num_states: int = 1
    kv_format: KVFormat | None = None


def attention_bytes_per_token(attention: AttentionShape, cache: CacheFormat) -> int:
    """Return the bytes one token takes in one layer, on one rank.

    K and V of the KV heads on this rank, `heads * (k_dim + v_dim) * itemsize`. A latent is one
    vector and whole on every rank; an indexer's key comes on top, in fp8. A layer that reads
    another's K and V takes nothing.

    Source: vLLM 0.32, v1/kv_cache_interface.py.
    Example: DeepSeek-V3 takes 1,152 bytes in bf16, on each of 8 ranks as on one.
    """
    return int(token_formula(attention, cache).value)


@lru_cache(maxsize=1024)
def token_formula(attention: AttentionShape, cache: CacheFormat) -> Formula:
    """Return how `attention_bytes_per_token` comes to its figure."""
    name = "bytes of a token in one layer"
    if attention.shares_with is not None:
        return compute(name, "0", "bytes", {})
    index = {"index_head_dim": attention.index_dim} if attention.index_dim else {}
    extra = f" + index_head_dim + 4 * ceil(index_head_dim / {_INDEX_SCALE_VALUES})" if index else ""
    if attention.latent is not None:
        expression, symbols = _latent_terms(attention.latent, cache)
    else:
        expression, symbols = _head_terms(attention, cache)
    return compute(name, expression + extra, "bytes", symbols | index)


def _head_terms(attention: AttentionShape, cache: CacheFormat) -> tuple[str, dict[str, int]]:
    heads = {"num_kv_heads": attention.num_kv_heads, "tp": cache.tp}
    on_rank = "max(1, num_kv_heads // tp)"
    if cache.kv_format is None:
        widths = {"head_dim": attention.head_dim, "v_head_dim": attention.v_head_dim}
        expression = f"{on_rank} * (head_dim + v_head_dim) * itemsize"
        return expression, heads | widths | {"itemsize": cache.itemsize}
    sizes = {
        "k_bytes": cache.kv_format.head_bytes(attention.head_dim),
        "v_bytes": cache.kv_format.head_bytes(attention.v_head_dim),
    }
    return f"{on_rank} * (k_bytes + v_bytes)", heads | sizes


def _latent_terms(latent: LatentShape, cache: CacheFormat) -> tuple[str, dict[str, int]]:
    if cache.kv_format is not None:
        num_bytes = cache.kv_format.latent_bytes(latent.kv_lora_rank, latent.rope_dim)
        return "latent_bytes", {"latent_bytes": num_bytes}
    symbols = {
        "kv_lora_rank": latent.kv_lora_rank,
        "qk_rope_head_dim": latent.rope_dim,
        "itemsize": cache.itemsize,
    }
    return "(kv_lora_rank + qk_rope_head_dim) * itemsize", symbols


def state_bytes(state: StateShape, cache: CacheFormat) -> int:
    """Return the bytes of one request's state in one layer, on one rank, whatever its length.

    Source: vLLM 0.32, model_executor/layers/mamba/mamba_utils.py.
    Example: a layer of Qwen3-Next in bf16 takes 1,097,728 bytes.
    """
    return int(state_formula(state, cache).value)


@lru_cache(maxsize=1024)
def state_formula(state: StateShape, cache: CacheFormat) -> Formula:
    """Return how `state_bytes` comes to its figure: the convolution's memory, and the state."""
    groups = state.num_groups // cache.tp
    if state.kind == "mamba2":
        groups = groups_on_rank(state.num_groups, cache.tp)
    conv = "(heads * head_dim // tp + 2 * groups * state_size) * (taps - 1 + ahead) * conv_itemsize"
    itemsize = cache.state_itemsize if state.dtype is None else _STATE_BYTES[state.dtype]
    symbols = {
        "heads": state.num_heads,
        "head_dim": state.head_dim,
        "tp": cache.tp,
        "groups": groups,
        "state_size": state.state_size,
        "taps": state.conv_kernel,
        "ahead": cache.num_spec_tokens,
        "conv_itemsize": cache.state_itemsize,
        "state_itemsize": itemsize,
    }
    expression = f"{conv} + heads * head_dim // tp * state_size * state_itemsize"
    return compute("bytes of a request's state in one layer", expression, "bytes", symbols)


def tokens_held(
    attention: AttentionShape,
    num_tokens: int,
    cache: CacheFormat,
    holding: Holding,
    num_encoder_tokens: int = 0,
) -> int:
    """Return the tokens of one request that a layer keeps, in whole blocks.

    Args:
        attention: The layer's attention.
        num_tokens: Length of the request.
        cache: Block size, and the most tokens of a step.
        holding: `steady` while the request decodes, or `admitted`: the worst case vLLM sets
            aside, in which a window or chunk also holds a whole step, and a window may
            straddle one block more.
        num_encoder_tokens: Tokens that cross-attention keeps.

    Source: vLLM 0.32, max_memory_usage_bytes of v1/kv_cache_interface.py.
    Example: a window of 1,024 with steps of 8,192 tokens is admitted with 577 blocks of 16.
    """
    if attention.kind == "cross":
        return round_up(num_encoder_tokens, cache.block_size)
    if attention.span is None:
        return round_up(num_tokens, cache.block_size)
    if holding == "steady":
        return round_up(min(attention.span, num_tokens), cache.block_size)
    if attention.kind == "chunked":
        in_flight = attention.span + cache.max_num_batched_tokens
        return round_up(min(in_flight, num_tokens), cache.block_size)
    in_flight = attention.span - 1 + cache.max_num_batched_tokens
    return round_up(min(in_flight, num_tokens), cache.block_size) + cache.block_size


def layer_request_bytes(
    layer: LayerShape,
    num_tokens: int,
    cache: CacheFormat,
    holding: Holding,
    num_encoder_tokens: int = 0,
) -> int:
    """Return the bytes of one request in one layer: K and V, and the state."""
    total = 0 if layer.state is None else cache.num_states * state_bytes(layer.state, cache)
    for attention in filter(None, (layer.attention, layer.cross)):
        held = tokens_held(attention, num_tokens, cache, holding, num_encoder_tokens)
        total += held * attention_bytes_per_token(attention, cache)
    return total


def kv_request_bytes(
    shape: ModelShape,
    num_tokens: int,
    cache: CacheFormat,
    holding: Holding = "steady",
    num_encoder_tokens: int | None = None,
) -> int:
    """Return the bytes of one request over all layers, on one rank.

    Args:
        shape: The model.
        num_tokens: Length of the request.
        cache: How it is stored.
        holding: See `tokens_held`.
        num_encoder_tokens: Tokens cross-attention keeps; None for the model's most.

    Note: This is the sum of layers. An engine that groups and pads them takes more; see
    `kv_groups`.
    """
    encoder_tokens = num_encoder_tokens
    if encoder_tokens is None:
        encoder_tokens = shape.max_encoder_tokens or 0
    return sum(
        layer_request_bytes(layer, num_tokens, cache, holding, encoder_tokens)
        for layer in shape.layers
    )


def growing_bytes_per_token(shape: ModelShape, cache: CacheFormat) -> int:
    """Return what each further token costs once every window is full."""
    return sum(
        attention_bytes_per_token(layer.attention, cache)
        for layer in shape.layers
        if layer.attention is not None
        and layer.attention.span is None
        and layer.attention.kind != "cross"
    )


def full_bytes_per_token(shape: ModelShape, cache: CacheFormat) -> int:
    """Return what a token costs where every layer keeps all tokens, windows or not.

    So do engines without a hybrid cache: ours, and vLLM for chunked attention.

    Example: Llama 3.1 8B in bf16 needs 131,072 bytes (32 layers, 8 KV heads of 128).
    """
    return sum(
        attention_bytes_per_token(layer.attention, cache)
        for layer in shape.layers
        if layer.attention is not None and layer.attention.kind != "cross"
    )


def state_bytes_per_request(shape: ModelShape, cache: CacheFormat) -> int:
    """Return the bytes of one request's states over all layers, on one rank."""
    return sum(state_bytes(layer.state, cache) for layer in shape.layers if layer.state)
