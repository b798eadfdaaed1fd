"""What requests cost in our own server's pool: whole blocks of one kind, a sink beside them."""

from dataclasses import dataclass

from nanoserve.plan.formula import Formula, Number, compute
from nanoserve.plan.kv_layout import Holding
from nanoserve.plan.kv_plan import blocks_for_length

_BLOCKS = "max(0, pool // block_bytes - sink_blocks)"


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Blocks of tokens over all layers; see `plan.kv_plan.PoolDemand`.

    Attributes:
        block_bytes: Bytes of a block.
        block_size: Tokens of a block.
        num_sink_blocks: Blocks that no request holds.
    """

    block_bytes: int
    block_size: int
    num_sink_blocks: int

    @property
    def is_free(self) -> bool:
        """Whether a request costs nothing: never, since every layer attends."""
        return False

    def request_bytes(self, num_tokens: int, holding: Holding = "admitted") -> int:
        """Return whole blocks; windows are kept whole, so the two holdings are the same."""
        del holding
        return blocks_for_length(num_tokens, self.block_size) * self.block_bytes

    def requests(self, pool_bytes: int, num_tokens: int) -> Formula:
        """Return how many requests of that length fit."""
        expression = f"{_BLOCKS} // blocks_of_request"
        symbols = self._symbols(pool_bytes, num_tokens)
        return compute("requests of the workload", expression, "requests", symbols)

    def concurrency(self, pool_bytes: int, max_model_len: int) -> Formula:
        """Return requests of the longest length."""
        expression = f"{_BLOCKS} / blocks_of_request"
        symbols = self._symbols(pool_bytes, max_model_len)
        return compute("requests of the longest length", expression, "requests", symbols)

    def tokens(self, pool_bytes: int, max_model_len: int) -> Formula:
        """Return the tokens that requests can hold, as the boot reports them."""
        symbols = self._symbols(pool_bytes, max_model_len)
        del symbols["blocks_of_request"]
        symbols["block_size"] = self.block_size
        return compute("tokens in the pool", f"{_BLOCKS} * block_size", "tokens", symbols)

    def _symbols(self, pool_bytes: int, num_tokens: int) -> dict[str, Number]:
        return {
            "pool": max(0, pool_bytes),
            "block_bytes": self.block_bytes,
            "sink_blocks": self.num_sink_blocks,
            "blocks_of_request": blocks_for_length(num_tokens, self.block_size),
        }
