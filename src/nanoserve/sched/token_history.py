"""`TokenHistory`: the tokens of a request up to a moment, without copying them."""

from collections.abc import Iterator, Sequence
from typing import overload


class TokenHistory(Sequence[int]):
    """A view of the first `length` items of a list that only ever grows.

    A plan is frozen, and a request's tokens pass through a thousand plans: a tuple in each
    would cost the square of the answer's length. The list is appended to and never
    changed before its end, so the view does not change either.

    Attributes:
        num_prompt_tokens: How many of the tokens are the prompt's.
    """

    def __init__(self, token_ids: list[int], num_prompt_tokens: int) -> None:
        self._token_ids = token_ids
        self._length = len(token_ids)
        self.num_prompt_tokens = num_prompt_tokens

    def continues(self, earlier: "TokenHistory") -> bool:
        """Whether this is `earlier` and what was added since: a view of the same list."""
        return self._token_ids is earlier._token_ids and self._length >= earlier._length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return self._token_ids[slice(*index.indices(self._length))]
        return self._token_ids[range(self._length)[index]]

    def __iter__(self) -> Iterator[int]:
        return iter(self._token_ids[: self._length])

    def __repr__(self) -> str:
        return f"TokenHistory({self[:]}, {self.num_prompt_tokens})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenHistory):
            return NotImplemented
        return self.num_prompt_tokens == other.num_prompt_tokens and self[:] == other[:]

    def __hash__(self) -> int:
        return hash((self._length, self.num_prompt_tokens))
