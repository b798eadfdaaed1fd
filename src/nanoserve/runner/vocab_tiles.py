"""A row of the vocabulary as tiles of 64 tokens, so that most work is done on their maxima.

The likeliest tokens lie in the tiles with the largest maxima: a row of 49,152 is ranked by
768 numbers and a few tiles, several times faster than by itself.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

TILE_LEN = 64  # tokens; draws depend on it, so another length is another random stream
NEVER = float("-inf")


def to_tiles(logits: Tensor) -> Tensor:
    """Return `logits` [R, V] as [R, M, 64]: a view, or a copy with the last tile filled up.

    What fills it up is at -inf, and so never drawn; M is the number of tiles.
    """
    num_rows, vocab_size = logits.shape
    missing = -vocab_size % TILE_LEN
    padded = pad(logits, (0, missing), value=NEVER) if missing else logits
    return padded.reshape(num_rows, -1, TILE_LEN)


def pick(tiles: Tensor, index: Tensor) -> Tensor:
    """Return tile `index[r, c]` of each row, [R, C * 64].

    Args:
        tiles: [R, M, 64].
        index: int64 [R, C].
    """
    wanted = index[:, :, None].expand(-1, -1, TILE_LEN)
    return tiles.gather(1, wanted).flatten(1)


def argmax_ids(tiles: Tensor, maxima: Tensor) -> Tensor:
    """Return the token of the largest value, the lowest id of several, int64 [R].

    Args:
        tiles: [R, M, 64].
        maxima: [R, M], the largest value of each tile.
    """
    best = maxima.argmax(dim=-1, keepdim=True)
    return best[:, 0] * TILE_LEN + pick(tiles, best).argmax(dim=-1)


def top_ids(tiles: Tensor, maxima: Tensor, count: int) -> Tensor:
    """Return the tokens of the `count` largest values, int64 [R, count].

    Largest first, of equal ones the lowest id first. A value among the largest is in one
    of the `count` tiles that rank first in the same order.

    Args:
        tiles: float32 [R, M, 64], no NaN.
        maxima: float32 [R, M], the largest value of each tile.
        count: At most `M * 64`.
    """
    num_tiles = maxima.shape[-1]
    tile_ids = torch.arange(num_tiles, device=maxima.device).expand_as(maxima)
    best = _rank(maxima, tile_ids, min(count, num_tiles))
    offsets = torch.arange(TILE_LEN, device=maxima.device)
    token_ids = (best[:, :, None] * TILE_LEN + offsets).flatten(1)
    return _rank(pick(tiles, best), token_ids, count)


def _rank(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """Return the ids of the `count` largest values, of equal ones the lowest id first.

    Value and id become one int64, the id's bits below the value's: ranking has no ties.
    """
    bits = (values + 0.0).view(torch.int32).long()  # + 0.0 makes one zero of two
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # ints in the order of the floats
    ranked = ((ordered << 32) | (ids ^ 0xFFFFFFFF)).topk(count).values
    return (ranked & 0xFFFFFFFF) ^ 0xFFFFFFFF
