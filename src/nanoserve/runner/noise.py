"""The randomness of sampling: a pure function of a request's seed, a position and an index.

There is no generator state to lose, so a draw is the same alone, in a crowd, and after
a preemption that computes the request again.

Each (seed, position) keys a SplitMix64 stream of its own (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014); an index is a place in it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_NUM_BITS = 52  # a half step more is exact in float64, so a uniform is neither 0 nor 1


def _signed(bits: int) -> int:
    """Return the int64 with the same bits: torch has no arithmetic on uint64."""
    return (bits + 2**63) % 2**64 - 2**63


_GAMMA = _signed(0x9E3779B97F4A7C15)
_FIRST_FACTOR = _signed(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = _signed(0x94D049BB133111EB)


def stream_keys(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> Tensor:
    """Return the key of each request's stream at its position, int64 [R].

    Args:
        seeds: One for each request; any int, taken modulo 2**64.
        positions: Place of the new token in its request, not negative.
        device: Where the keys go.
    """
    table = torch.tensor([list(map(_signed, seeds)), list(positions)], device=device)
    return _mix(_mix(table[0] + _GAMMA) + table[1] * _GAMMA)


def exponential(keys: Tensor, indices: Tensor) -> Tensor:
    """Return standard exponential noise, float64 [R, N]; above 0 and finite.

    Args:
        keys: int64 [R], see `stream_keys`.
        indices: int64 [N] or [R, N], places in the stream, not negative.
    """
    bits = _mix(keys[:, None] + (indices + 1) * _GAMMA)
    uniform = (_shift_right(bits, 64 - _NUM_BITS).double() + 0.5) * 2.0**-_NUM_BITS
    return uniform.log_().neg_()


def _mix(state: Tensor) -> Tensor:
    """Return SplitMix64's output for its state, bit by bit as on uint64."""
    state = (state ^ _shift_right(state, 30)) * _FIRST_FACTOR
    state = (state ^ _shift_right(state, 27)) * _SECOND_FACTOR
    return state ^ _shift_right(state, 31)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Shift zeros in from the left; on int64 the operator shifts the sign in."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
