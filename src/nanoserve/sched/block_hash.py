"""The name of a full block: a hash of its tokens chained on everything before it.

Knows nothing of the pool. The hash is cryptographic because prompts are untrusted: a
collision would let one client read another's KV. A salt separates clients that must not
share a cache.
"""

import hashlib
import struct
from collections.abc import Sequence


def root_hash(salt: bytes) -> bytes:
    """Return the parent of a first block; requests with different salts share no block."""
    return hashlib.sha256(b"nanoserve-prefix\0" + salt).digest()


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the hash of the block that holds `token_ids` after the prefix named `parent`.

    Parent and ids have a fixed width, so two different inputs are never the same bytes.
    """
    packed = struct.pack(f"<{len(token_ids)}q", *token_ids)
    return hashlib.sha256(parent + packed).digest()


def extend_block_hashes(
    block_hashes: list[bytes], token_ids: Sequence[int], block_size: int, salt: bytes
) -> None:
    """Append to `block_hashes` what is missing to name every full block of `token_ids`.

    Args:
        block_hashes: Hashes of the first full blocks of `token_ids`; grows in place.
        token_ids: All tokens of a request; a tail that fills no block has no hash.
        block_size: Tokens per block.
        salt: Goes into the first block's hash, and so into all.
    """
    parent = block_hashes[-1] if block_hashes else root_hash(salt)
    for index in range(len(block_hashes), len(token_ids) // block_size):
        parent = chain_hash(parent, token_ids[index * block_size : (index + 1) * block_size])
        block_hashes.append(parent)
