"""What a logged pool holds, and what it would hold after a change: the log's arithmetic again.

Knows no flag. A figure that the log does not give is None, and nothing is promised of it.
"""

import math
from dataclasses import dataclass, replace

from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.units import format_bytes


@dataclass(frozen=True, slots=True)
class PoolSum:
    """A pool, and one request of the longest length.

    Attributes:
        pool_bytes: What is left for the pool; negative where the parts before it took more.
        request_bytes: What one request of `max_model_len` takes; None where unknown.
        max_model_len: Longest request; None where unknown.
    """

    pool_bytes: int
    request_bytes: int | None = None
    max_model_len: int | None = None

    @property
    def holds_a_request(self) -> bool:
        """Whether it fits; where a request's size is unknown, whether there is a pool."""
        return self.pool_bytes > 0 and self.pool_bytes >= (self.request_bytes or 0)

    @property
    def concurrency(self) -> float | None:
        """How many requests of the longest length fit."""
        return self.pool_bytes / self.request_bytes if self.request_bytes else None

    @property
    def tokens(self) -> int | None:
        """Tokens the pool holds, by the request's bytes for each token."""
        if not self.request_bytes or not self.max_model_len:
            return None
        return int(self.pool_bytes * self.max_model_len / self.request_bytes)

    def with_more(self, num_bytes: int) -> "PoolSum":
        """Return the sum with a pool larger by so much; smaller where that is negative."""
        return replace(self, pool_bytes=self.pool_bytes + num_bytes)

    def with_length(self, max_model_len: int) -> "PoolSum":
        """Return the sum for another longest length: bytes in proportion, rounded up."""
        if not self.request_bytes or not self.max_model_len:
            return replace(self, max_model_len=max_model_len)
        size = math.ceil(self.request_bytes * max_model_len / self.max_model_len)
        return replace(self, request_bytes=size, max_model_len=max_model_len)

    def with_half_cache(self) -> "PoolSum":
        """Return the sum with keys and values of half the bytes."""
        half = None if self.request_bytes is None else math.ceil(self.request_bytes / 2)
        return replace(self, request_bytes=half)

    def describe(self) -> str:
        """Return what it holds, in words."""
        pool = f"pool {format_bytes(self.pool_bytes)}"
        fit = self.concurrency
        if fit is None or self.max_model_len is None:
            return pool
        return f"{pool} holds {fit:,.2f} requests of {self.max_model_len:,} tokens"


def pool_sum(boot: LoggedBoot) -> PoolSum | None:
    """Return a boot's pool and request; None where the log does not lead to a pool."""
    pool_bytes = _pool_bytes(boot)
    if pool_bytes is None:
        return None
    error = boot.error
    length = boot.max_model_len or (error.need_tokens if error else None)
    return PoolSum(pool_bytes, _request_bytes(boot, pool_bytes, length), length)


def _pool_bytes(boot: LoggedBoot) -> int | None:
    """Return the pool: as the refusal compared it, as logged, or from the other parts."""
    error = boot.error
    is_compared = error is not None and error.kind == "request larger than pool"
    if error is not None and is_compared and error.have_bytes is not None:
        return error.have_bytes
    if boot.pool_bytes is not None:
        return boot.pool_bytes
    return _sglang_pool(boot) if boot.engine == "sglang" else _budgeted_pool(boot)


def _sglang_pool(boot: LoggedBoot) -> int | None:
    """Return what is free after loading less the share of before that is kept free."""
    if boot.free_bytes is None or boot.loaded_free_bytes is None or boot.utilization is None:
        return None
    return boot.loaded_free_bytes - round((1 - boot.utilization) * boot.free_bytes)


def _budgeted_pool(boot: LoggedBoot) -> int | None:
    """Return what vLLM's parts leave of its budget; None where its largest part is unknown."""
    requested = boot.requested_bytes
    weights = boot.consumed_bytes if boot.consumed_bytes is not None else boot.weight_bytes
    if requested is None or weights is None or boot.activation_bytes is None:
        return None
    outside = 0 if boot.consumed_bytes is not None else boot.non_torch_bytes or 0
    graphs = boot.graph_estimate_bytes if boot.is_graph_estimate_in_budget else 0
    return requested - weights - outside - boot.activation_bytes - (graphs or 0)


def _request_bytes(boot: LoggedBoot, pool_bytes: int, length: int | None) -> int | None:
    """Return one longest request: as refused, or by what the engine counted of the pool."""
    error = boot.error
    if error is not None and error.kind == "request larger than pool" and error.need_bytes:
        return error.need_bytes
    tokens = boot.tokens or (error.have_tokens if error else None)
    if pool_bytes > 0 and boot.max_concurrency:
        return math.ceil(pool_bytes / boot.max_concurrency)
    if pool_bytes > 0 and tokens and length:
        return math.ceil(pool_bytes * length / tokens)
    return None
