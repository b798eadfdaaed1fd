"""What requests cost in an engine's pool, and how many fit: one small class for each way.

`GroupedCost` is vLLM's groups of equal pages, `CellCost` SGLang's cells per token with slots
for states beside them, `SummedCost` the plain sum of layers of the other engines. All are of
one rank of one pipeline stage. Knows no budget: pools are handed in.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from nanoserve.capacity.kv_groups import CacheGroups
from nanoserve.plan.formula import Formula, Number, compute
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

_TOKENS = "tokens in the pool"
_CONCURRENCY = "requests of the longest length"
_REQUESTS = "requests of the workload"


class CacheCost(Protocol):
    """What requests cost in one pool."""

    @property
    def is_free(self) -> bool:
        """Whether a request costs nothing here: a stage without caches."""
        ...

    def request_bytes(self, num_tokens: int, holding: Holding = "admitted") -> int:
        """Return the bytes of one request of that final length."""
        ...

    def requests(self, pool_bytes: int, num_tokens: int) -> Formula:
        """Return how many requests of that final length a pool holds while they decode."""
        ...

    def concurrency(self, pool_bytes: int, max_model_len: int) -> Formula:
        """Return the requests of the longest length that a pool holds, as the engine logs it."""
        ...

    def tokens(self, pool_bytes: int, max_model_len: int) -> Formula:
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

    def requests(self, pool_bytes: int, num_tokens: int) -> Formula:
        """Return how many fit while they decode; a window has let go of what it passed."""
        symbols = self._symbols(pool_bytes, num_tokens, "steady")
        return compute(_REQUESTS, "pool // block_bytes // blocks_of_request", "requests", symbols)

    def concurrency(self, pool_bytes: int, max_model_len: int) -> Formula:
        """Return what vLLM logs as maximum concurrency: of requests as they are admitted."""
        symbols = self._symbols(pool_bytes, max_model_len, "admitted")
        return compute(_CONCURRENCY, "pool // block_bytes / blocks_of_request", "requests", symbols)

    def tokens(self, pool_bytes: int, max_model_len: int) -> Formula:
        """Return concurrency times the longest length."""
        symbols = self._symbols(pool_bytes, max_model_len, "admitted")
        symbols["max_model_len"] = max_model_len
        expression = "pool // block_bytes * max_model_len // blocks_of_request"
        return compute(_TOKENS, expression, "tokens", symbols)

    def _symbols(self, pool_bytes: int, num_tokens: int, holding: Holding) -> dict[str, Number]:
        return {
            "pool": max(0, pool_bytes),
            "block_bytes": self.groups.block_bytes,
            "blocks_of_request": self._blocks(num_tokens, holding),
        }

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
        return not self._has_cells and self.state_bytes == 0

    @property
    def _has_cells(self) -> bool:
        return self.full_bytes + self.window_bytes > 0

    def request_bytes(self, num_tokens: int, holding: Holding = "admitted") -> int:
        """Return its cells and states; the two holdings are the same here."""
        del holding
        cells = num_tokens * self.full_bytes + self._in_window(num_tokens) * self.window_bytes
        return cells + _STATES_PER_REQUEST * self.state_bytes

    def requests(self, pool_bytes: int, num_tokens: int) -> Formula:
        """Return what the scarcest of cells, window cells and states allows."""
        symbols = self._symbols(pool_bytes)
        symbols["tokens"] = num_tokens
        limits = []
        if self.full_bytes:
            limits.append(f"{self._cells} // tokens")
        if self.window_bytes:
            symbols |= {"in_window": self._in_window(num_tokens)}
            limits.append(f"floor({self._cells} * window_share) // in_window")
        if self.state_bytes:
            limits.append(f"{self._states} // {_STATES_PER_REQUEST}")
        expression = limits[0] if len(limits) == 1 else f"min({', '.join(limits)})"
        return compute(_REQUESTS, expression, "requests", symbols)

    def concurrency(self, pool_bytes: int, max_model_len: int) -> Formula:
        """Return cells over the longest length; states are counted in `requests`."""
        if not self._has_cells:
            return self.requests(pool_bytes, max_model_len)
        symbols = self._symbols(pool_bytes) | {"max_model_len": max_model_len}
        return compute(_CONCURRENCY, f"{self._cells} / max_model_len", "requests", symbols)

    def tokens(self, pool_bytes: int, max_model_len: int) -> Formula:
        """Return what SGLang logs as `max_total_num_tokens`."""
        symbols = self._symbols(pool_bytes)
        if not self._has_cells:
            symbols["max_model_len"] = max_model_len
            expression = f"{self._states} // {_STATES_PER_REQUEST} * max_model_len"
            return compute(_TOKENS, expression, "tokens", symbols)
        return compute(_TOKENS, self._cells, "tokens", symbols)

    @property
    def _states(self) -> str:
        """The expression of the states that a pool holds."""
        share = "state_memory_ratio / (1 + state_memory_ratio)" if self._has_cells else "1"
        return f"floor(pool * {share}) // state_bytes"

    @property
    def _cells(self) -> str:
        """The expression of the cells that a pool holds beside the states."""
        pool = f"(pool - {self._states} * state_bytes)" if self.state_bytes else "pool"
        cell = "(full_bytes + window_share * window_bytes)" if self.window_bytes else "full_bytes"
        return f"floor({pool} // {cell})"

    def _symbols(self, pool_bytes: int) -> dict[str, Number]:
        symbols: dict[str, Number] = {"pool": max(0, pool_bytes), "full_bytes": self.full_bytes}
        if self.window_bytes:
            symbols |= {"window_bytes": self.window_bytes, "window_share": _SWA_TOKENS_RATIO}
        if self.state_bytes:
            symbols |= {"state_bytes": self.state_bytes, "state_memory_ratio": _STATE_MEMORY_RATIO}
        return symbols

    def _in_window(self, num_tokens: int) -> int:
        return min(num_tokens, self.window) if self.window else num_tokens


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

    def requests(self, pool_bytes: int, num_tokens: int) -> Formula:
        """Return how many fit while they decode."""
        symbols = self._symbols(pool_bytes, num_tokens)
        return compute(_REQUESTS, "pool // bytes_of_request", "requests", symbols)

    def concurrency(self, pool_bytes: int, max_model_len: int) -> Formula:
        """Return requests of the longest length."""
        symbols = self._symbols(pool_bytes, max_model_len)
        return compute(_CONCURRENCY, "pool / bytes_of_request", "requests", symbols)

    def tokens(self, pool_bytes: int, max_model_len: int) -> Formula:
        """Return concurrency times the longest length."""
        symbols = self._symbols(pool_bytes, max_model_len)
        symbols["max_model_len"] = max_model_len
        return compute(_TOKENS, "pool * max_model_len // bytes_of_request", "tokens", symbols)

    def _symbols(self, pool_bytes: int, num_tokens: int) -> dict[str, Number]:
        bytes_of_request = self.request_bytes(num_tokens, "steady")
        return {"pool": max(0, pool_bytes), "bytes_of_request": bytes_of_request}


def cell_cost(shape: ModelShape, cache: CacheFormat) -> CellCost:
    """Return SGLang's cost of a model.

    Args:
        shape: The layers of one stage; windows that SGLang keeps no pool for made full.
        cache: How they are stored; `max_num_batched_tokens` is the prefill chunk.
    """
    full_bytes = window_bytes = window = 0
    for layer in shape.layers:
        if layer.attention is None:
            continue
        num_bytes = attention_bytes_per_token(layer.attention, cache)
        if layer.attention.span is not None:
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
