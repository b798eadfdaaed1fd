"""What requests cost in an engine's pool, and how many fit: one small class for each way.

`GroupedCost` is vLLM's groups of equal pages, `CellCost` SGLang's cells per token with slots
for states beside them, `SummedCost` the plain sum of layers of the other engines. All are of
one rank of one pipeline stage. Knows no budget: pools are handed in.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from nanoserve.plan.kv_groups import CacheGroups
from nanoserve.plan.kv_layout import (
    CacheFormat,
    Holding,
    attention_bytes_per_token,
    kv_request_bytes,
    state_bytes_per_request,
)
from nanoserve.spec.model_shape import LayerShape, ModelShape
from nanoserve.units import round_up

# Source: SGLang model_runner_kv_cache_mixin.py and server_args.py: --swa-full-tokens-ratio,
# --mamba-full-memory-ratio, and states kept for each running request with a radix cache.
_SWA_TOKENS_RATIO = 0.8
_STATE_MEMORY_RATIO = 0.9
_STATES_PER_REQUEST = 3
_LLAMA_CPP_PADDING = 256  # cells; source: llama.cpp, llama-kv-cache-iswa.cpp


class CacheCost(Protocol):
    """What requests cost in one pool."""

    @property
    def is_free(self) -> bool:
        """Whether a request costs nothing here: a stage without caches."""
        ...

    def request_bytes(self, num_tokens: int, holding: Holding = "admitted") -> int:
        """Return the bytes of one request of that final length."""
        ...

    def requests_in(self, pool_bytes: int, num_tokens: int) -> int:
        """Return how many requests of that final length a pool holds while they decode."""
        ...

    def concurrency(self, pool_bytes: int, max_model_len: int) -> float:
        """Return the requests of the longest length that a pool holds, as the engine logs it."""
        ...

    def tokens_in(self, pool_bytes: int, max_model_len: int) -> int:
        """Return the tokens of a pool, as the engine logs them."""
        ...


@dataclass(frozen=True, slots=True)
class GroupedCost:
    """vLLM: every group of layers draws blocks from one pool.

    Attributes:
        groups: The groups.
        cache: What they were made for.
        num_encoder_tokens: Tokens that cross-attention keeps.
    """

    groups: CacheGroups
    cache: CacheFormat
    num_encoder_tokens: int = 0

    @property
    def is_free(self) -> bool:
        """Whether no layer keeps anything."""
        return self.groups.block_bytes == 0

    def request_bytes(self, num_tokens: int, holding: Holding = "admitted") -> int:
        """Return whole blocks of all groups."""
        return self._blocks(num_tokens, holding) * self.groups.block_bytes

    def requests_in(self, pool_bytes: int, num_tokens: int) -> int:
        """Return how many fit while they decode; a window has let go of what it passed."""
        num_blocks = max(0, pool_bytes) // self.groups.block_bytes
        return num_blocks // self._blocks(num_tokens, "steady")

    def concurrency(self, pool_bytes: int, max_model_len: int) -> float:
        """Return what vLLM logs as maximum concurrency: of requests as they are admitted."""
        num_blocks = max(0, pool_bytes) // self.groups.block_bytes
        return num_blocks / self._blocks(max_model_len, "admitted")

    def tokens_in(self, pool_bytes: int, max_model_len: int) -> int:
        """Return concurrency times the longest length."""
        return self.groups.logged_tokens(
            max(0, pool_bytes), max_model_len, self.cache, self.num_encoder_tokens
        )

    def _blocks(self, num_tokens: int, holding: Holding) -> int:
        return self.groups.request_blocks(num_tokens, self.cache, self.num_encoder_tokens, holding)


@dataclass(frozen=True, slots=True)
class CellCost:
    """SGLang: a cell for each token, fewer for windows, and a share of the pool for states.

    Attributes:
        full_bytes: Of a token in the layers that keep all tokens.
        window_bytes: Of a token in the layers that slide and have a pool of their own.
        window: Tokens of that window, a prefill chunk included; 0 where there is none.
        state_bytes: Of a request's states.
    """

    full_bytes: int
    window_bytes: int = 0
    window: int = 0
    state_bytes: int = 0

    @property
    def is_free(self) -> bool:
        """Whether no layer keeps anything."""
        return self._cell_bytes == 0 and self.state_bytes == 0

    @property
    def _cell_bytes(self) -> float:
        return self.full_bytes + _SWA_TOKENS_RATIO * self.window_bytes

    def request_bytes(self, num_tokens: int, holding: Holding = "admitted") -> int:
        """Return its cells and states; the two holdings are the same here."""
        del holding
        cells = num_tokens * self.full_bytes + self._in_window(num_tokens) * self.window_bytes
        return cells + _STATES_PER_REQUEST * self.state_bytes

    def requests_in(self, pool_bytes: int, num_tokens: int) -> int:
        """Return what the scarcest of cells, window cells and states allows."""
        cells, states = self._divide(pool_bytes)
        limits = []
        if self.full_bytes:
            limits.append(cells // num_tokens)
        if self.window_bytes:
            limits.append(int(cells * _SWA_TOKENS_RATIO) // self._in_window(num_tokens))
        if self.state_bytes:
            limits.append(states // _STATES_PER_REQUEST)
        return min(limits)

    def concurrency(self, pool_bytes: int, max_model_len: int) -> float:
        """Return cells over the longest length; states are counted in `requests_in`."""
        if not self._cell_bytes:
            return float(self.requests_in(pool_bytes, max_model_len))
        return self._divide(pool_bytes)[0] / max_model_len

    def tokens_in(self, pool_bytes: int, max_model_len: int) -> int:
        """Return what SGLang logs as `max_total_num_tokens`."""
        if not self._cell_bytes:
            return self.requests_in(pool_bytes, max_model_len) * max_model_len
        return self._divide(pool_bytes)[0]

    def _in_window(self, num_tokens: int) -> int:
        return min(num_tokens, self.window) if self.window else num_tokens

    def _divide(self, pool_bytes: int) -> tuple[int, int]:
        """Return cells and states of a pool."""
        pool = max(0, pool_bytes)
        num_states = 0
        if self.state_bytes:
            share = _STATE_MEMORY_RATIO / (1 + _STATE_MEMORY_RATIO) if self._cell_bytes else 1.0
            num_states = int(pool * share) // self.state_bytes
            pool -= num_states * self.state_bytes
        return (int(pool // self._cell_bytes) if self._cell_bytes else 0), num_states


@dataclass(frozen=True, slots=True)
class SummedCost:
    """The plain sum of layers, windows held as the engine holds them.

    Attributes:
        shape: The layers.
        cache: How they are stored.
        num_encoder_tokens: Tokens that cross-attention keeps.
    """

    shape: ModelShape
    cache: CacheFormat
    num_encoder_tokens: int = 0

    @property
    def is_free(self) -> bool:
        """Whether no layer keeps anything."""
        return self.request_bytes(1) == 0

    def request_bytes(self, num_tokens: int, holding: Holding = "admitted") -> int:
        """Return the sum over layers."""
        return kv_request_bytes(
            self.shape, num_tokens, self.cache, holding, self.num_encoder_tokens
        )

    def requests_in(self, pool_bytes: int, num_tokens: int) -> int:
        """Return how many fit while they decode."""
        return max(0, pool_bytes) // self.request_bytes(num_tokens, "steady")

    def concurrency(self, pool_bytes: int, max_model_len: int) -> float:
        """Return requests of the longest length."""
        return max(0, pool_bytes) / self.request_bytes(max_model_len, "steady")

    def tokens_in(self, pool_bytes: int, max_model_len: int) -> int:
        """Return concurrency times the longest length."""
        return max(0, pool_bytes) * max_model_len // self.request_bytes(max_model_len, "steady")


def cell_cost(shape: ModelShape, cache: CacheFormat, has_window_pool: bool) -> CellCost:
    """Return SGLang's cost of a model.

    Args:
        shape: The layers of one stage.
        cache: How they are stored; `max_num_batched_tokens` is the prefill chunk.
        has_window_pool: Whether SGLang keeps windows of this family apart.
    """
    full_bytes = window_bytes = window = 0
    for layer in shape.layers:
        if layer.attention is None:
            continue
        num_bytes = attention_bytes_per_token(layer.attention, cache)
        if has_window_pool and layer.attention.span is not None:
            window_bytes += num_bytes
            window = layer.attention.span + cache.max_num_batched_tokens
        else:
            full_bytes += num_bytes
    return CellCost(full_bytes, window_bytes, window, state_bytes_per_request(shape, cache))


def padded_windows(shape: ModelShape, cache: CacheFormat) -> ModelShape:
    """Return the model as llama.cpp keeps its windows: with a step beside them, in whole 256s.

    Source: llama.cpp, llama-kv-cache-iswa.cpp: min(context, window + n_ubatch), padded.
    """

    def widened(layer: LayerShape) -> LayerShape:
        if layer.attention is None or layer.attention.span is None:
            return layer
        cells = round_up(layer.attention.span + cache.max_num_batched_tokens, _LLAMA_CPP_PADDING)
        return replace(layer, attention=replace(layer.attention, span=cells))

    return replace(shape, layers=tuple(map(widened, shape.layers)))
