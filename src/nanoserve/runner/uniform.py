"""The randomness of sampling: a pure function of a request's seed and a position.

There is no generator state to lose, so a draw is the same alone, in a crowd, and after
a preemption that computes the request again.
"""

import struct
from hashlib import blake2b

_PURPOSE = b"nanoserve draw"  # keeps these digests apart from any other use of the seed
_NUM_BITS = 52  # `uniform * total` in float64 stays below `total`


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that draws the token at `position`.

    Args:
        seed: The request's; any int, taken modulo 2**64.
        position: Place of the new token in its request, not negative.
    """
    message = struct.pack("<QQ", seed % 2**64, position)
    digest = blake2b(message, digest_size=8, person=_PURPOSE).digest()
    return (int.from_bytes(digest, "little") >> (64 - _NUM_BITS)) * 2.0**-_NUM_BITS
