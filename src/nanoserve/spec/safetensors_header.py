"""The header of a safetensors file: names, dtypes, shapes and byte ranges. Reads no weights.

The `safetensors` package reads headers too, but hands out tensors; loading in bounded
pieces needs the byte ranges, and the planner needs shapes without torch.

```
0        8                8 + N                                      end of file
| N: u64 | JSON, N bytes  | data: tensors side by side, no gap       |
```

Source: the format as the safetensors repository's README and its Rust reader define it.
"""

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from nanoserve.error_reasons import reason_of
from nanoserve.errors import CorruptFileError, ModelNotFoundError
from nanoserve.spec.json_file import parse_json_object

MAX_HEADER_BYTES = 100_000_000  # the library's own cap
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: bytes `start` to `end` of the file, and what they hold."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_safetensors_header(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file by name, in the order they lie.

    Raises:
        ModelNotFoundError: The file cannot be opened.
        CorruptFileError: The header contradicts itself or the file's length.
    """
    try:
        with path.open("rb") as file:
            num_bytes = file.seek(0, 2)
            file.seek(0)
            length_field = file.read(8)
            header_bytes = _header_bytes(path, length_field, num_bytes)
            content = file.read(header_bytes)
    except OSError as error:
        message = f"{path} cannot be read: {reason_of(error)}. Check the path and its permissions."
        raise ModelNotFoundError(message) from None
    header = parse_json_object(content, path, offset=8)
    header.pop("__metadata__", None)
    data_start = 8 + header_bytes
    entries = {name: _entry(path, name, raw, data_start) for name, raw in header.items()}
    return _in_order(path, entries, data_start, num_bytes)


def _header_bytes(path: Path, length_field: bytes, num_bytes: int) -> int:
    if len(length_field) < 8:
        raise CorruptFileError(str(path), f"the file has {num_bytes} bytes; a header needs 8.", 0)
    header_bytes: int = struct.unpack("<Q", length_field)[0]
    limit = min(MAX_HEADER_BYTES, num_bytes - 8)
    if header_bytes > limit:
        problem = f"the header is said to have {header_bytes:,} bytes; at most {limit:,} can be."
        raise CorruptFileError(str(path), problem, 0)
    return header_bytes


def _entry(path: Path, name: str, raw: Any, data_start: int) -> TensorEntry:
    """Check one header entry on its own."""
    if not isinstance(raw, dict) or not {"dtype", "shape", "data_offsets"} <= raw.keys():
        raise CorruptFileError(str(path), f"the entry of tensor {name!r} is incomplete.", 8)
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise CorruptFileError(str(path), f"tensor {name!r} has dtype {dtype!r:.40}.", 8)
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise CorruptFileError(str(path), f"tensor {name!r} has an impossible shape or place.", 8)
    need_bytes = prod(shape) * ITEM_BYTES[dtype]
    have_bytes = offsets[1] - offsets[0]
    if have_bytes != need_bytes:
        problem = f"tensor {name!r} needs {need_bytes} bytes and is given {have_bytes}."
        raise CorruptFileError(str(path), problem, 8)
    return TensorEntry(dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _are_sizes(value: Any) -> bool:
    """Whether it is a list of integers that 64 bits can hold."""
    if not isinstance(value, list) or len(value) > 16:
        return False
    return all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _in_order(
    path: Path, entries: dict[str, TensorEntry], data_start: int, num_bytes: int
) -> dict[str, TensorEntry]:
    """Return the entries by position; they must fill the data without overlap or gap."""
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)))
    position = data_start
    for name, entry in ordered.items():
        if entry.start != position:
            problem = f"tensor {name!r} begins at {entry.start:,}, not where the last one ends."
            raise CorruptFileError(str(path), problem, position)
        position = entry.end
    if position != num_bytes:
        problem = f"the tensors end at byte {position:,} and the file at {num_bytes:,}."
        raise CorruptFileError(str(path), problem, position)
    return ordered
