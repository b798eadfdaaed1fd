"""The header of a GGUF file: metadata and where each tensor lies. Reads no weights.

Every count, length and offset is checked against the file before it is used, so a damaged
or hostile file gives a `CorruptFileError` and never a large allocation.

The `gguf` package has a reader too. It makes several numpy arrays per string, which takes
3 to 5 s for the 98,000 strings of the default model's vocabulary; the whole start-up has
5 s. Measured: this parser takes 0.11 s for the same file (one Xeon core, 2026-11). Dequantisation
stays with `gguf.quants` (see `weights.dequant`).

Source: the GGUF specification, ggml/docs/gguf.md, versions 2 and 3.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from nanoserve.error_reasons import reason_of
from nanoserve.errors import CorruptFileError, ModelNotFoundError, UnsupportedModelError
from nanoserve.spec.ggml_types import GGML_TYPES
from nanoserve.spec.gguf_cursor import GGUFCursor
from nanoserve.units import round_up

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32  # bytes
_MAX_ALIGNMENT = 1 << 20  # bytes
_MAX_KEY_BYTES = 65535  # of a metadata key; the specification's limit
_MAX_TENSOR_NAME_BYTES = 4096  # ggml's own limit is 64
_MAX_DIMENSIONS = 4


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
                return _parse(GGUFCursor(path, data, num_bytes))
    except OSError as error:
        message = f"{path} cannot be read: {reason_of(error)}. Check the path and its permissions."
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


def _parse(cursor: GGUFCursor) -> GGUFFile:
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


def _read_metadata(cursor: GGUFCursor, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        start = cursor.position
        key = cursor.string(_MAX_KEY_BYTES)
        if key in metadata:
            cursor.fail(f"the metadata key {key!r} is there twice.", start)
        metadata[key] = cursor.value(cursor.u32())
    return metadata


def _alignment(cursor: GGUFCursor, metadata: dict[str, Any]) -> int:
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


def _read_tensor_info(cursor: GGUFCursor) -> _TensorInfo:
    position = cursor.position
    name = cursor.string(_MAX_TENSOR_NAME_BYTES)
    num_dimensions = cursor.u32()
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        cursor.fail(f"tensor {name!r} has {num_dimensions} dimensions.", position)
    shape = tuple(cursor.u64() for _ in range(num_dimensions))[::-1]
    return _TensorInfo(position, name, shape, cursor.u32(), cursor.u64())


def _place_tensors(
    cursor: GGUFCursor, infos: list[_TensorInfo], data_start: int, alignment: int
) -> dict[str, GGUFTensor]:
    """Turn header entries into absolute places, each checked against the file's length."""
    tensors: dict[str, GGUFTensor] = {}
    for info in infos:
        if info.name in tensors:
            cursor.fail(f"tensor {info.name!r} is there twice.", info.position)
        if info.type_id not in GGML_TYPES:
            known = tuple(kind.name for kind in GGML_TYPES.values())
            what = f"Tensor {info.name!r} in {cursor.path} has storage type {info.type_id}."
            raise UnsupportedModelError(what, known)
        type_name, block_items, block_bytes = GGML_TYPES[info.type_id]
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
