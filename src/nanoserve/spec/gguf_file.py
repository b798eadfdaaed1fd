"""The header of a GGUF file: metadata and where each tensor lies. Reads no weights.

Every count, length and offset is checked against the file before it is used, so a damaged
or hostile file gives a `CorruptFileError` and never a large allocation.

The `gguf` package has a reader too. It makes several numpy arrays per string, which takes
3 to 5 s for the 98,000 strings of the default model's vocabulary; the whole start-up has
5 s. This parser takes a fraction of a second for the same file. Types and their block sizes
come from `gguf.constants`, dequantisation stays with `gguf.quants` (see `weights.dequant`).

Source: the GGUF specification, ggml/docs/gguf.md, versions 2 and 3.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from nanoserve.errors import CorruptFileError, ModelNotFoundError, UnsupportedModelError
from nanoserve.units import round_up

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32  # bytes
_MAX_ALIGNMENT = 1 << 20  # bytes
_MAX_KEY_BYTES = 65535  # of a metadata key; the specification's limit
_MAX_TENSOR_NAME_BYTES = 4096  # ggml's own limit is 64
_MAX_DIMENSIONS = 4
_MAX_ARRAY_ITEMS = 1 << 24  # 60 times the largest vocabulary there is
_MAX_NESTING = 4  # arrays of arrays

_SCALAR_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    10: "Q",
    11: "q",
    12: "d",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies.

    Attributes:
        name: E.g. `blk.0.attn_q.weight`.
        shape: Rows first, as torch and numpy have it (GGUF stores it reversed).
        type_name: Storage format, e.g. `Q4_1` or `F32`.
        offset: First byte, from the start of the file.
        num_bytes: Length in the file.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """What the header of a GGUF file says; metadata values are plain Python."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Read the header of a GGUF file.

    Raises:
        ModelNotFoundError: The file cannot be opened.
        CorruptFileError: The header contradicts itself or the file's length.
        UnsupportedModelError: A GGUF version or tensor type not known here.
    """
    try:
        with path.open("rb") as file:
            num_bytes = file.seek(0, 2)
            if num_bytes == 0:
                raise CorruptFileError(str(path), "the file is empty.", 0)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Cursor(path, data, num_bytes))
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}. Check the path and its permissions."
        raise ModelNotFoundError(message) from None


def read_gguf_floats(file: GGUFFile, name: str) -> tuple[float, ...]:
    """Return the values of a small F32 tensor.

    Raises:
        CorruptFileError: The tensor is not F32.
    """
    tensor = file.tensors[name]
    if tensor.type_name != "F32":
        problem = f"tensor {name} is {tensor.type_name}, not F32."
        raise CorruptFileError(str(file.path), problem, tensor.offset)
    with file.path.open("rb") as stream:
        stream.seek(tensor.offset)
        return struct.unpack(f"<{prod(tensor.shape)}f", stream.read(tensor.num_bytes))


def _parse(cursor: "_Cursor") -> GGUFFile:
    if cursor.take(4) != _MAGIC:
        cursor.fail("it does not begin with GGUF.", 0)
    version = cursor.u32()
    if version not in _VERSIONS:
        what = f"{cursor.path} is GGUF version {version}"
        if version & 0xFFFF == 0:
            what = f"{cursor.path} is a big-endian GGUF"
        message = f"{what}. Known here: little-endian versions 2 and 3."
        raise UnsupportedModelError(message)
    num_tensors = cursor.count(min_bytes=24, what="tensors")
    num_keys = cursor.count(min_bytes=13, what="metadata keys")
    metadata = _read_metadata(cursor, num_keys)
    alignment = _alignment(cursor, metadata)
    infos = [_read_tensor_info(cursor) for _ in range(num_tensors)]
    data_start = round_up(cursor.position, alignment)
    tensors = _place_tensors(cursor, infos, data_start, alignment)
    return GGUFFile(cursor.path, metadata, tensors)


def _read_metadata(cursor: "_Cursor", num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        start = cursor.position
        key = cursor.string(_MAX_KEY_BYTES)
        if key in metadata:
            cursor.fail(f"the metadata key {key!r} is there twice.", start)
        metadata[key] = cursor.value(cursor.u32())
    return metadata


def _alignment(cursor: "_Cursor", metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    is_power_of_two = isinstance(alignment, int) and alignment > 0 and alignment.bit_count() == 1
    if not is_power_of_two or alignment > _MAX_ALIGNMENT:
        problem = (
            f"general.alignment is {alignment!r:.80}, not a power of two up to {_MAX_ALIGNMENT:,}."
        )
        cursor.fail(problem)
    return int(alignment)


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    """A tensor as its header entry states it; `position` is where the entry begins."""

    position: int
    name: str
    shape: tuple[int, ...]
    type_id: int
    relative_offset: int


def _read_tensor_info(cursor: "_Cursor") -> _TensorInfo:
    position = cursor.position
    name = cursor.string(_MAX_TENSOR_NAME_BYTES)
    num_dimensions = cursor.u32()
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        cursor.fail(f"tensor {name!r} has {num_dimensions} dimensions.", position)
    shape = tuple(cursor.u64() for _ in range(num_dimensions))[::-1]
    return _TensorInfo(position, name, shape, cursor.u32(), cursor.u64())


def _place_tensors(
    cursor: "_Cursor", infos: list[_TensorInfo], data_start: int, alignment: int
) -> dict[str, GGUFTensor]:
    """Turn header entries into absolute places, each checked against the file's length."""
    type_sizes = _type_sizes()
    tensors: dict[str, GGUFTensor] = {}
    for info in infos:
        if info.name in tensors:
            cursor.fail(f"tensor {info.name!r} is there twice.", info.position)
        if info.type_id not in type_sizes:
            known = tuple(name for name, _, _ in type_sizes.values())
            what = f"Tensor {info.name!r} in {cursor.path} has storage type {info.type_id}."
            raise UnsupportedModelError(what, known)
        type_name, block_items, block_bytes = type_sizes[info.type_id]
        num_items = prod(info.shape)
        if num_items == 0 or info.shape[-1] % block_items:
            problem = f"tensor {info.name!r} of type {type_name} has shape {info.shape}."
            cursor.fail(problem, info.position)
        num_bytes = num_items // block_items * block_bytes
        offset = data_start + info.relative_offset
        if info.relative_offset % alignment or offset + num_bytes > cursor.num_bytes:
            problem = (
                f"tensor {info.name!r} should lie at bytes {offset:,} to {offset + num_bytes:,}, "
                f"aligned to {alignment}; the file has {cursor.num_bytes:,} bytes."
            )
            cursor.fail(problem, info.position)
        tensors[info.name] = GGUFTensor(info.name, info.shape, type_name, offset, num_bytes)
    return tensors


def _type_sizes() -> dict[int, tuple[str, int, int]]:
    """Return name, items per block and bytes per block of each storage type id."""
    try:
        from gguf.constants import GGML_QUANT_SIZES  # an optional dependency
    except ImportError:
        message = "Reading GGUF files needs the gguf package: pip install 'nanoserve[serve]'."
        raise UnsupportedModelError(message) from None
    return {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}


class _Cursor:
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
