"""A position in a mapped GGUF file, and the values that can be read from it.

Owns the rule that every length and count is checked against the end of the file, and
against a limit, before it is used. Knows nothing of what the values mean: see `gguf_file`.
"""

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from nanoserve.errors import CorruptFileError

_MAX_ARRAY_ITEMS = 1 << 24  # 60 times the largest vocabulary there is
_MAX_NESTING = 4  # arrays of arrays
_SCALAR_FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip  # value type id to struct format
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class GGUFCursor:
    """A position in the mapped file; every read is checked against the file's end."""

    def __init__(self, path: Path, data: mmap.mmap, num_bytes: int) -> None:
        self.path = path
        self.num_bytes = num_bytes
        self.position = 0
        self._data = data

    def fail(self, problem: str, offset: int | None = None) -> NoReturn:
        """Raise for what was found at `offset`, or here."""
        raise CorruptFileError(
            str(self.path), problem, self.position if offset is None else offset
        ) from None

    def take(self, length: int) -> bytes:
        """Return the next `length` bytes."""
        end = self.position + length
        if end > self.num_bytes:
            self.fail(f"{length:,} more bytes are announced; the file ends before them.")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def u32(self) -> int:
        """Return the next four bytes as an unsigned integer."""
        number: int = _U32.unpack(self.take(4))[0]
        return number

    def u64(self) -> int:
        """Return the next eight bytes as an unsigned integer."""
        number: int = _U64.unpack(self.take(8))[0]
        return number

    def count(self, min_bytes: int, what: str) -> int:
        """Return the next count of things that take at least `min_bytes` each."""
        start = self.position
        number = self.u64()
        if number * min_bytes > self.num_bytes - self.position:
            self.fail(f"{number:,} {what} are announced; the file is too short.", start)
        return number

    def string(self, max_bytes: int | None = None) -> str:
        """Return the next length-prefixed UTF-8 string."""
        start = self.position
        length = self.u64()
        if max_bytes is not None and length > max_bytes:
            self.fail(f"a name of {length:,} bytes; at most {max_bytes:,}.", start)
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            self.fail("a string is not UTF-8.", start)

    def value(self, value_type: int, nesting: int = 0) -> Any:
        """Return the next metadata value of a GGUF value type."""
        if value_type == _STRING:
            return self.string()
        if value_type == _ARRAY:
            return self._array(nesting)
        return self._scalars(value_type, 1)[0]

    def _scalars(self, value_type: int, count: int) -> list[Any]:
        if value_type == _BOOL:
            start = self.position
            raw = self.take(count)
            if raw.strip(b"\x00\x01"):
                self.fail("a boolean is neither 0 nor 1.", start)
            return [byte == 1 for byte in raw]
        if value_type not in _SCALAR_FORMATS:
            self.fail(f"unknown metadata value type {value_type}.")
        layout = struct.Struct(f"<{count}{_SCALAR_FORMATS[value_type]}")
        return list(layout.unpack(self.take(layout.size)))

    def _array(self, nesting: int) -> list[Any]:
        if nesting >= _MAX_NESTING:
            self.fail(f"arrays are nested more than {_MAX_NESTING} deep.")
        item_type = self.u32()
        start = self.position
        count = self.count(min_bytes=_min_item_bytes(item_type), what="array items")
        if count > _MAX_ARRAY_ITEMS:
            self.fail(f"an array of {count:,} items; at most {_MAX_ARRAY_ITEMS:,}.", start)
        if item_type == _STRING:
            return self._strings(count)
        if item_type == _ARRAY:
            return [self.value(_ARRAY, nesting + 1) for _ in range(count)]
        return self._scalars(item_type, count)

    def _strings(self, count: int) -> list[str]:
        """Return `count` strings; the loop is flat, because vocabularies are long."""
        data, position, end = self._data, self.position, self.num_bytes
        unpack: Callable[[Any, int], tuple[int]] = _U64.unpack_from
        strings = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                if position > end:
                    self.fail("a string runs past the end of the file.", start - 8)
                strings.append(data[start:position].decode("utf-8"))
        except struct.error:
            self.fail("the file ends inside an array of strings.", position)
        except UnicodeDecodeError:
            self.fail("a string is not UTF-8.", start - 8)
        self.position = position
        return strings


def _min_item_bytes(value_type: int) -> int:
    if value_type in _SCALAR_FORMATS:
        return struct.calcsize(f"<{_SCALAR_FORMATS[value_type]}")
    return {_BOOL: 1, _STRING: 8, _ARRAY: 12}.get(value_type, 1)
