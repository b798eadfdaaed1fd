"""Who holds which block of the KV pool.

Owns the free list, the ref counts and the prefix cache. Knows nothing of requests: block
tables are theirs (see `request`), and it is handed them. It never sees a tensor.

```
            allocate                  release, not registered
 free  ----------------->  used  ------------------------------>  free
                          ^    |      release, registered
                     take |    +------------------------------>  cached
                          +------------------------------------  cached  --evict-->  used
```
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from nanoserve.errors import InvariantError
from nanoserve.sched.block_hash import extend_block_hashes
from nanoserve.units import ceil_div


class BlockManager:
    """Free, cached and used blocks; every block is exactly one of these.

    A used block has a ref count over 0. A cached block is unowned, its KV is complete and
    findable by hash; the least recently released is evicted first, once no block is free.
    No call does work in proportion to the pool, `check_integrity` excepted.
    """

    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack; block 0 goes first
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._ref_counts = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that are unowned and empty."""
        return len(self._free)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that are unowned and hold a findable prefix."""
        return len(self._cached)

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be allocated without taking one from a request."""
        return len(self._free) + len(self._cached)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that at least one request holds."""
        return self.num_blocks - self.num_available_blocks

    def ref_count(self, block_id: int) -> int:
        """Return how many block tables hold `block_id`."""
        return self._ref_counts[block_id]

    def is_registered(self, block_id: int) -> bool:
        """Whether the block is complete and findable, so that nobody may write to it."""
        return block_id in self._hash_of

    def blocks_for_length(self, num_tokens: int) -> int:
        """Return the blocks that `num_tokens` tokens occupy."""
        return ceil_div(num_tokens, self.block_size)

    def num_missing(self, block_table: Sequence[int], num_tokens: int) -> int:
        """Return the blocks to add to a table before it covers `num_tokens` tokens."""
        return max(0, self.blocks_for_length(num_tokens) - len(block_table))

    def extend_hashes(
        self, block_hashes: list[bytes], token_ids: Sequence[int], salt: bytes
    ) -> None:
        """Bring `block_hashes` up to the full blocks of `token_ids`; nothing without caching."""
        if self.enable_prefix_caching:
            extend_block_hashes(block_hashes, token_ids, self.block_size, salt)

    def find_prefix(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Return the blocks of the longest run of known hashes from the first; holds none."""
        block_ids = []
        for block_hash in block_hashes:
            block_id = self._block_of.get(block_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def num_available_beside(self, block_ids: Iterable[int]) -> int:
        """Return the blocks still available once `block_ids` are taken."""
        return self.num_available_blocks - sum(block_id in self._cached for block_id in block_ids)

    def take(self, block_ids: Iterable[int]) -> None:
        """Hold blocks that `find_prefix` returned, shared with whoever holds them already."""
        for block_id in block_ids:
            self._cached.pop(block_id, None)
            self._ref_counts[block_id] += 1

    def allocate(self, num_blocks: int) -> list[int]:
        """Hold `num_blocks` empty blocks; cached ones are evicted only when none is free.

        Raises:
            InvariantError: Fewer are available; the caller had to check.
        """
        if num_blocks > self.num_available_blocks:
            message = (
                f"allocation of {num_blocks} blocks from {len(self._free)} free and "
                f"{len(self._cached)} cached ones"
            )
            raise InvariantError(message)
        return [self._allocate_one() for _ in range(num_blocks)]

    def _allocate_one(self) -> int:
        block_id = self._free.pop() if self._free else self._evict()
        self._ref_counts[block_id] = 1
        return block_id

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        del self._block_of[self._hash_of.pop(block_id)]
        return block_id

    def register(self, block_id: int, block_hash: bytes) -> None:
        """Make a used block findable. Its KV must be complete.

        Where another block has this hash already, that one stays the findable one.
        """
        if block_hash not in self._block_of and block_id not in self._hash_of:
            self._block_of[block_hash] = block_id
            self._hash_of[block_id] = block_hash

    def register_filled(
        self,
        block_table: Sequence[int],
        block_hashes: Sequence[bytes],
        num_before: int,
        num_tokens: int,
    ) -> None:
        """Make findable the blocks that the tokens from `num_before` to `num_tokens` filled."""
        filled = slice(num_before // self.block_size, num_tokens // self.block_size)
        for block_id, block_hash in zip(block_table[filled], block_hashes[filled], strict=False):
            self.register(block_id, block_hash)

    def release(self, block_table: list[int]) -> None:
        """Give back every block of `block_table` and empty it.

        The tail goes first, so that of one request's blocks the start of its prompt is
        evicted last.

        Raises:
            InvariantError: A block is not held by anyone.
        """
        while block_table:
            block_id = block_table.pop()
            if self._ref_counts[block_id] < 1:
                message = f"release of block {block_id}, which nobody holds"
                raise InvariantError(message)
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._retire(block_id)

    def _retire(self, block_id: int) -> None:
        if block_id in self._hash_of:
            self._cached[block_id] = None
        else:
            self._free.append(block_id)

    def check_integrity(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Compare the books with all block tables there are. Costs O(blocks): for tests.

        Raises:
            InvariantError: An identity is broken; both sides are printed.
        """
        held = Counter(block_id for table in block_tables for block_id in table)
        counted = {block_id: count for block_id, count in enumerate(self._ref_counts) if count}
        _expect_equal("ref counts and block table entries", counted, dict(held))
        accounted = sorted([*self._free, *self._cached, *held])
        _expect_equal("free + cached + used blocks", accounted, list(range(self.num_blocks)))
        inverse = {block_id: block_hash for block_hash, block_id in self._block_of.items()}
        _expect_equal("hash of block and block of hash", self._hash_of, inverse)
        unowned = {block_id for block_id in self._hash_of if block_id not in held}
        _expect_equal("cached blocks and unowned hashed ones", set(self._cached), unowned)


def _expect_equal(identity: str, left: object, right: object) -> None:
    if left != right:
        message = f"{identity} differ: {left} and {right}"
        raise InvariantError(message)
