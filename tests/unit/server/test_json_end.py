"""Where an object ends in text that comes in pieces."""

import pytest

from nanoserve.server.json_end import JsonEnd

OBJECT = r'{"a": "}\\", "b\"": [{"c": "\u007d"}, 1], "d": {}}'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_end_is_found_whatever_the_pieces(size: int) -> None:
    """Brackets and quotes inside strings do not count, and what follows is left alone."""
    text = f" \n{OBJECT}}} rest"
    scan = JsonEnd()

    for start in range(0, len(text), size):
        end = scan.feed(text[start : start + size])
        if end is not None:
            break

    assert text[: start + (end or 0)].strip() == OBJECT


@pytest.mark.parametrize("text", ["x{}", "[1]", '"{}"'])
def test_what_begins_otherwise_is_no_object(text: str) -> None:
    """Only a brace begins one."""
    scan = JsonEnd()

    assert scan.feed(text) is None
    assert scan.is_no_object


def test_open_object_has_no_end() -> None:
    """More may come."""
    scan = JsonEnd()

    assert scan.feed('{"a": {"b": 1}') is None
    assert not scan.is_no_object
