"""GGUF headers built byte by byte, so that any one of them can be wrong."""

import struct
from collections.abc import Sequence
from pathlib import Path

U8, I32, F32, BOOL, STRING, ARRAY, U32 = 0, 5, 6, 7, 8, 9, 4


def text(value: str | bytes) -> bytes:
    """Return a length-prefixed string."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key_value(key: str, value_type: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", value_type) + payload


def array(item_type: int, count: int, payload: bytes) -> bytes:
    return struct.pack("<IQ", item_type, count) + payload


def tensor_info(
    name: str = "t", dims: Sequence[int] = (8,), type_id: int = 0, offset: int = 0
) -> bytes:
    head = text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return head + struct.pack("<IQ", type_id, offset)


def gguf_bytes(
    key_values: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(key_values))
    head += b"".join(key_values) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
