"""Values are read in order, and nothing is read past the end."""

import mmap
import struct
from pathlib import Path

import pytest

from nanoserve.errors import CorruptFileError
from nanoserve.spec.gguf_cursor import GGUFCursor
from tests.unit.spec.gguf_bytes import ARRAY, BOOL, F32, STRING, array, text


def cursor(content: bytes) -> GGUFCursor:
    """Return a cursor at the start of `content`."""
    data = mmap.mmap(-1, max(1, len(content)))
    data.write(content)
    return GGUFCursor(Path("f.gguf"), data, len(content))


def test_values_follow_each_other() -> None:
    """Each read begins where the last one ended."""
    at = cursor(struct.pack("<IQ", 7, 2**40) + text("é") + b"\x01" + array(F32, 1, bytes(4)))

    assert (at.u32(), at.u64(), at.string()) == (7, 2**40, "é")
    assert at.value(BOOL) is True
    assert at.value(ARRAY) == [0.0]
    assert at.position == at.num_bytes


def test_nothing_is_read_past_the_end() -> None:
    """Each read refuses to take more than there is, and says where."""
    for content in (b"", b"abc"):
        with pytest.raises(CorruptFileError) as caught:
            cursor(content).u32()
        assert caught.value.offset == 0


def test_a_count_is_held_against_what_is_left() -> None:
    """A count of things of 8 bytes needs 8 bytes for each."""
    two = struct.pack("<Q", 2)

    assert cursor(two + bytes(16)).count(min_bytes=8, what="things") == 2
    with pytest.raises(CorruptFileError, match="2 things are announced"):
        cursor(two + bytes(15)).count(min_bytes=8, what="things")


def test_an_array_of_strings_ends_where_it_should() -> None:
    """Strings of any length, the empty one too, leave the cursor behind the last."""
    at = cursor(array(STRING, 3, text("a") + text("") + text("ccc")) + b"rest")

    assert at.value(ARRAY) == ["a", "", "ccc"]
    assert at.take(4) == b"rest"
