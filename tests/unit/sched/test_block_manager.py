"""`block_manager`: free, cached and used blocks."""

import pytest

from nanoserve.errors import InvariantError
from nanoserve.sched.block_manager import BlockManager


def cache_chain(manager: BlockManager, names: list[bytes]) -> list[int]:
    """Allocate, register and release one block per name; return their ids in order."""
    block_ids = manager.allocate(len(names))
    for block_id, name in zip(block_ids, names, strict=True):
        manager.register(block_id, name)
    manager.release(list(block_ids))
    return block_ids


def counts(manager: BlockManager) -> tuple[int, int, int]:
    return manager.num_free_blocks, manager.num_cached_blocks, manager.num_used_blocks


def test_a_new_pool_is_free() -> None:
    """At first every block is free."""
    assert counts(BlockManager(5, 4)) == (5, 0, 0)


def test_blocks_for_length_rounds_up() -> None:
    """A begun block counts."""
    manager = BlockManager(5, 4)

    assert [manager.blocks_for_length(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_allocated_blocks_are_distinct_and_used() -> None:
    """Each allocated block has one holder."""
    manager = BlockManager(5, 4)

    block_ids = manager.allocate(3)

    assert len(set(block_ids)) == 3
    assert counts(manager) == (2, 0, 3)
    assert [manager.ref_count(block_id) for block_id in block_ids] == [1, 1, 1]


def test_released_blocks_without_a_name_are_free() -> None:
    """An incomplete block is of no use to anyone; releasing empties the table."""
    manager = BlockManager(5, 4)
    table = manager.allocate(3)

    manager.release(table)

    assert table == []
    assert counts(manager) == (5, 0, 0)


def test_released_blocks_with_a_name_are_cached() -> None:
    """A registered block stays findable when nobody holds it."""
    manager = BlockManager(5, 4)

    block_ids = cache_chain(manager, [b"a", b"b"])

    assert counts(manager) == (3, 2, 0)
    assert manager.find_prefix([b"a", b"b", b"c"]) == block_ids


def test_a_prefix_ends_at_the_first_unknown_hash() -> None:
    """What lies behind a gap is not a prefix."""
    manager = BlockManager(5, 4)
    block_ids = cache_chain(manager, [b"a", b"b"])

    assert manager.find_prefix([b"a", b"x", b"b"]) == block_ids[:1]
    assert manager.find_prefix([b"x", b"a"]) == []


def test_a_taken_block_is_shared() -> None:
    """Two holders of a prefix hold the same blocks; the last one to release caches them."""
    manager = BlockManager(5, 4)
    table = manager.allocate(1)
    manager.register(table[0], b"a")
    shared = manager.find_prefix([b"a"])
    manager.take(shared)

    manager.release(table)

    assert counts(manager) == (4, 0, 1)
    assert manager.ref_count(shared[0]) == 1
    manager.release(shared)
    assert counts(manager) == (4, 1, 0)


def test_hits_that_are_cached_count_against_what_is_available() -> None:
    """Taking a cached block makes it unavailable; taking a used one costs nothing."""
    manager = BlockManager(5, 4)
    cached = cache_chain(manager, [b"a", b"b"])
    used = manager.allocate(1)

    assert manager.num_available_blocks == 4
    assert manager.num_available_beside(cached) == 2
    assert manager.num_available_beside(used) == 4


def test_free_blocks_go_before_cached_ones() -> None:
    """Nothing is evicted while a block is free."""
    manager = BlockManager(4, 4)
    cached = cache_chain(manager, [b"a", b"b"])

    block_ids = manager.allocate(2)

    assert not set(block_ids) & set(cached)
    assert manager.num_cached_blocks == 2


def test_the_least_recently_released_block_is_evicted_first() -> None:
    """Eviction is in the order of release."""
    manager = BlockManager(2, 4)
    (old,) = cache_chain(manager, [b"old"])
    (new,) = cache_chain(manager, [b"new"])

    assert manager.allocate(1) == [old]
    assert manager.find_prefix([b"old"]) == []
    assert manager.find_prefix([b"new"]) == [new]


def test_the_start_of_a_prompt_is_evicted_last() -> None:
    """A request's tail is released first, so its prefix survives longest."""
    manager = BlockManager(3, 4)
    chain = cache_chain(manager, [b"a", b"b", b"c"])

    manager.allocate(2)

    assert manager.find_prefix([b"a", b"b", b"c"]) == chain[:1]


def test_the_first_block_with_a_hash_stays_the_findable_one() -> None:
    """A second block with the same content is registered in vain and ends up free."""
    manager = BlockManager(4, 4)
    first, second = manager.allocate(2)
    manager.register(first, b"a")

    manager.register(second, b"a")

    assert manager.find_prefix([b"a"]) == [first]
    assert (manager.is_registered(first), manager.is_registered(second)) == (True, False)


def test_a_block_keeps_its_first_name() -> None:
    """Registering a block again changes nothing."""
    manager = BlockManager(2, 4)
    (block_id,) = manager.allocate(1)
    manager.register(block_id, b"a")

    manager.register(block_id, b"b")

    assert manager.find_prefix([b"b"]) == []
    manager.check_integrity([[block_id]])


def test_without_prefix_caching_there_are_no_hashes() -> None:
    """With caching off no block is ever named."""
    manager = BlockManager(2, 4, enable_prefix_caching=False)
    block_hashes: list[bytes] = []

    manager.extend_hashes(block_hashes, list(range(8)), b"")

    assert block_hashes == []


def test_an_impossible_allocation_names_both_counts() -> None:
    """Allocating more than is available is a bug of the caller."""
    manager = BlockManager(2, 4)
    cache_chain(manager, [b"a"])

    with pytest.raises(InvariantError, match="3 blocks from 1 free and 1 cached"):
        manager.allocate(3)


def test_a_block_cannot_be_released_twice() -> None:
    """Releasing a block that nobody holds is a bug of the caller."""
    manager = BlockManager(2, 4)
    table = manager.allocate(1)
    manager.release(list(table))

    with pytest.raises(InvariantError, match="nobody holds"):
        manager.release(table)


def test_integrity_holds_the_books_against_the_tables() -> None:
    """A table entry that was never counted breaks the identity, and both sides are printed."""
    manager = BlockManager(3, 4)
    table = manager.allocate(1)
    manager.check_integrity([table])

    with pytest.raises(InvariantError, match=r"\{0: 1\} and \{0: 2\}"):
        manager.check_integrity([table, table])


def test_only_blocks_that_were_filled_become_findable() -> None:
    """Tokens 3 to 9 fill blocks 0 and 1 of 4 tokens each; block 2 is not full."""
    manager = BlockManager(5, 4)
    table = manager.allocate(3)

    manager.register_filled(table, [b"a", b"b", b"c"], 3, 9)

    assert manager.find_prefix([b"a", b"b", b"c"]) == table[:2]
    assert not manager.is_registered(table[2])
