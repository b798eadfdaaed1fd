"""`block_hash`: when two blocks have the same name."""

from nanoserve.sched.block_hash import chain_hash, extend_block_hashes, root_hash


def hashes_of(token_ids: list[int], salt: bytes = b"", block_size: int = 2) -> list[bytes]:
    block_hashes: list[bytes] = []
    extend_block_hashes(block_hashes, token_ids, block_size, salt)
    return block_hashes


def test_only_full_blocks_have_a_hash() -> None:
    """Five tokens in blocks of two have two hashes."""
    assert len(hashes_of([1, 2, 3, 4, 5])) == 2
    assert hashes_of([1]) == []


def test_equal_prefixes_have_equal_hashes() -> None:
    """Hashes agree up to the first block that differs, and nowhere after it."""
    left = hashes_of([1, 2, 3, 4, 5, 6])
    right = hashes_of([1, 2, 9, 4, 5, 6])

    assert [a == b for a, b in zip(left, right, strict=True)] == [True, False, False]


def test_the_same_tokens_elsewhere_have_another_hash() -> None:
    """A block's name holds everything before it, not its own tokens alone."""
    first, second = hashes_of([1, 2, 1, 2])

    assert first != second


def test_a_salt_separates_every_block() -> None:
    """Requests of different salts share no hash."""
    assert not set(hashes_of([1, 2, 3, 4], b"a")) & set(hashes_of([1, 2, 3, 4], b"b"))


def test_extending_in_pieces_equals_hashing_at_once() -> None:
    """Growing a list of hashes as tokens come gives the list of the whole."""
    token_ids = list(range(11))
    grown: list[bytes] = []
    for length in range(len(token_ids) + 1):
        extend_block_hashes(grown, token_ids[:length], 3, b"salt")

    assert grown == hashes_of(token_ids, b"salt", block_size=3)


def test_hashes_are_256_bits_and_ids_have_a_fixed_width() -> None:
    """Neither a longer id nor a shifted boundary gives the same bytes."""
    root = root_hash(b"")

    assert len(chain_hash(root, [1])) == 32
    assert chain_hash(root, [1, 0]) != chain_hash(root, [1])
    assert chain_hash(root, [256]) != chain_hash(root, [1])
