"""JSON files are read strictly, with one kind of error."""

from pathlib import Path

import pytest

from nanoserve.errors import CorruptFileError
from nanoserve.spec.json_file import read_json_object


def test_an_object_is_returned(tmp_path: Path) -> None:
    """A JSON object becomes a dict."""
    path = tmp_path / "config.json"
    path.write_text('{"a": [1, 2.5, null, "é"]}', encoding="utf-8")

    assert read_json_object(path) == {"a": [1, 2.5, None, "é"]}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "not JSON"),
        (b"[1]", "a list, not an object"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1, "a": 2}', "there twice"),
        (b"\xff\xfe{}", "not JSON"),
        (b'{"a": "\\ud800"}', "surrogates"),
        (b'{"a": ' + b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_not_strict_json_is_corrupt(tmp_path: Path, content: bytes, match: str) -> None:
    """NaN, repeated keys, bad UTF-8 and bottomless nesting are refused with the path."""
    path = tmp_path / "config.json"
    path.write_bytes(content)

    with pytest.raises(CorruptFileError, match=match) as caught:
        read_json_object(path)

    assert caught.value.path == str(path)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """The size is looked at first."""
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(65 * 2**20)

    with pytest.raises(CorruptFileError, match="at most"):
        read_json_object(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A folder under the name of a file is an error with the path."""
    with pytest.raises(CorruptFileError, match="cannot be read"):
        read_json_object(tmp_path)
