"""Values of flags, read from what was typed; what cannot be read is refused in our words.

The parser of the command line has words of its own for that, which name its types and no value.
"""

import types
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from nanoserve.errors import OptionError
from nanoserve.units import parse_bytes

_MAX_SHOWN = 60  # characters of a value in a message


class ValueReader(NamedTuple):
    """How a flag's value is read.

    Attributes:
        read: From the text to the value; a default that is a value already stays as it is.
        metavar: What the help shows in its place.
    """

    read: Callable[[Any], Any]
    metavar: str


def value_reader(
    flag: str, hint: Any, bounds: tuple[float, float] | None = None
) -> ValueReader | None:
    """Return how values of a type are read; None where any text is one, or none is taken.

    Args:
        flag: Named in a refusal.
        hint: `int`, `float` or a `Literal`, or one of them or None.
        bounds: The least and the most that a number may be.
    """
    kind = _without_none(hint)
    if get_origin(kind) is Literal:
        return _choice_reader(flag, get_args(kind))
    if kind not in (int, float):
        return None
    wanted = "a whole number" if kind is int else "a number"
    if bounds is not None:
        wanted += f" from {bounds[0]:,.10g} to {bounds[1]:,.10g}"

    def read(value: Any) -> Any:
        try:
            number = kind(value)
        except ValueError:
            raise _refusal(flag, value, wanted) from None
        if bounds is not None and not bounds[0] <= number <= bounds[1]:
            raise _refusal(flag, value, wanted)
        return number

    return ValueReader(read, f"<{kind.__name__}>")


def bytes_reader(flag: str) -> ValueReader:
    """Return how a number of bytes is read: `1.5GiB`."""

    def read(value: Any) -> Any:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except ValueError as error:
            message = f"{flag}: {error}."
            raise OptionError(message) from None

    return ValueReader(read, "<bytes>")


def _choice_reader(flag: str, choices: tuple[str, ...]) -> ValueReader:
    def read(value: Any) -> Any:
        if value not in choices:
            raise _refusal(flag, value, f"one of {', '.join(choices)}")
        return value

    return ValueReader(read, f"<{'|'.join(choices)}>")


def _without_none(hint: Any) -> Any:
    """Return the type of a hint that may be None as well."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 else hint


def _refusal(flag: str, value: object, wanted: str) -> OptionError:
    shown = str(value)
    cut = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
    return OptionError(f"{flag} is {cut!r}; it must be {wanted}.")
