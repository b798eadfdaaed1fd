"""Whether an expression can run away depends on how it is written, not on the text at hand."""

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

from nanoserve import explain

_ESCAPES = re.compile(r"\\.", re.DOTALL)
_CLASSES = re.compile(r"\[\^?[^\]]*\]")
_UNBOUNDED = re.compile(r"[*+]|\{\d*,\}")


def repeats_without_end(pattern: str) -> list[str]:
    """Return the repeats of an expression that say no most; escapes and classes are none."""
    return _UNBOUNDED.findall(_CLASSES.sub("", _ESCAPES.sub("", pattern)))


def patterns_in(value: object) -> Iterator[str]:
    """Yield the expressions that a value holds, however deep."""
    if isinstance(value, re.Pattern):
        yield value.pattern
    elif isinstance(value, dict):
        yield from patterns_in(tuple(value.values()))
    elif isinstance(value, tuple | list | frozenset):
        for item in value:
            yield from patterns_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        yield from patterns_in(tuple(getattr(value, field.name) for field in fields))


def patterns_of_readers() -> dict[str, str]:
    """Return every expression of the package, with the module that holds it."""
    modules = [
        importlib.import_module(f"{explain.__name__}.{found.name}")
        for found in pkgutil.iter_modules(explain.__path__)
    ]
    return {
        pattern: module.__name__
        for module in modules
        for value in vars(module).values()
        for pattern in patterns_in(value)
    }


@pytest.mark.parametrize(
    ("pattern", "repeats"),
    [
        (r"\s*a+", ["*", "+"]),
        (r"[*+]\*{1,3}", []),
        (r"(?:`{3,})x{,}?", ["{3,}", "{,}"]),
        (r"[^\]+]a{2}", []),
    ],
)
def test_repeats_without_end_are_found(pattern: str, repeats: list[str]) -> None:
    """In a class or behind a backslash the same character is no repeat."""
    assert repeats_without_end(pattern) == repeats


def test_every_repeat_has_an_end() -> None:
    """So an expression looks at so many characters at each place, and reading is linear.

    What it costs at a place is not said here: `bench.log_reading` tells.
    """
    patterns = patterns_of_readers()

    assert len(patterns) > 150
    assert {one: where for one, where in patterns.items() if repeats_without_end(one)} == {}
