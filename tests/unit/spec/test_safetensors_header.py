"""Safetensors headers are read as the library reads them, and damaged ones are refused."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nanoserve.errors import CorruptFileError, ModelNotFoundError
from nanoserve.spec.safetensors_header import TensorEntry, read_safetensors_header


def write(path: Path, header: Any, data: bytes = b"", header_bytes: int | None = None) -> Path:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(content) if header_bytes is None else header_bytes
    path.write_bytes(struct.pack("<Q", length) + content + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_entries_equal_what_the_library_reads(tmp_path: Path) -> None:
    """Shapes and the bytes at each range are those the safetensors package finds."""
    tensors = {
        "a": torch.arange(6, dtype=torch.float32).view(2, 3),
        "b": torch.ones(3, dtype=torch.bfloat16),
        "c": torch.tensor(7, dtype=torch.int64),
        "d": torch.zeros(0, 4, dtype=torch.float16),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})

    entries = read_safetensors_header(path)

    content = path.read_bytes()
    with safe_open(path, "pt") as file:
        assert set(entries) == set(file.keys())
        for name, found in entries.items():
            expected = file.get_tensor(name)
            assert found.shape == tuple(expected.shape)
            raw = content[found.start : found.end]
            assert raw == bytes(expected.contiguous().view(-1).view(torch.uint8).tolist())


def test_entries_come_in_the_order_they_lie(tmp_path: Path) -> None:
    """Whatever the order in the header, reading goes through the file once."""
    header = {"late": entry(offsets=(8, 16)), "early": entry(offsets=(0, 8))}

    entries = read_safetensors_header(write(tmp_path / "f", header, bytes(16)))

    assert list(entries) == ["early", "late"]
    start = 8 + len(json.dumps(header))
    assert entries["early"] == TensorEntry("F32", (2,), start, start + 8)


DAMAGED: dict[str, tuple[Any, bytes, str]] = {
    "not JSON": (b"{nope", b"", "not JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", "not JSON"),
    "too deep": (b'{"a":' + b"[" * 200_000, b"", "not JSON"),
    "a number of 5000 digits": (b'{"a":' + b"9" * 5000 + b"}", b"", "not JSON"),
    "a list": (b"[]", b"", "not an object"),
    "a key twice": (b'{"a": {}, "a": {}}', b"", "there twice"),
    "an entry that is a number": ({"a": 3}, b"", "incomplete"),
    "an entry without a dtype": ({"a": {"shape": [], "data_offsets": [0, 0]}}, b"", "incomplete"),
    "an unknown dtype": ({"a": entry("F12")}, bytes(8), "dtype 'F12'"),
    "a dtype that is a list": ({"a": entry(dtype=["F32"])}, bytes(8), "dtype"),  # type: ignore[arg-type]
    "a negative size": ({"a": entry(shape=(-2,))}, bytes(8), "impossible"),
    "a size of text": ({"a": entry(shape=("2",))}, bytes(8), "impossible"),
    "a size of true": ({"a": entry(shape=(True, 2))}, bytes(8), "impossible"),
    "a shape that is a number": ({"a": entry(shape=2)}, bytes(8), "impossible"),
    "17 dimensions": ({"a": entry(shape=[1] * 17)}, bytes(8), "impossible"),
    "three offsets": ({"a": entry(offsets=(0, 8, 9))}, bytes(8), "impossible"),
    "bytes that do not fit the shape": ({"a": entry(offsets=(0, 4))}, bytes(4), "needs 8 bytes"),
    "offsets the wrong way round": ({"a": entry(offsets=(8, 0))}, bytes(8), "given -8"),
    "a shape that overflows": (
        {"a": entry(shape=(2**62, 2**62))},
        bytes(8),
        "given 8",
    ),
    "a gap": ({"a": entry(offsets=(4, 12))}, bytes(12), "not where the last one ends"),
    "an overlap": (
        {"a": entry(), "b": entry(offsets=(4, 12))},
        bytes(12),
        "'b' begins",
    ),
    "data past the tensors": ({"a": entry()}, bytes(9), "the tensors end at"),
    "tensors past the data": ({"a": entry()}, bytes(7), "the tensors end at"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_refused(tmp_path: Path, name: str) -> None:
    """Each contradiction gives a CorruptFileError with the path and an offset."""
    header, data, match = DAMAGED[name]
    path = write(tmp_path / "model.safetensors", header, data)

    with pytest.raises(CorruptFileError, match=match) as caught:
        read_safetensors_header(path)

    assert caught.value.path == str(path)
    assert caught.value.offset is not None


@pytest.mark.parametrize("header_bytes", [3, 2**20, 2**63, 2**64 - 1])
def test_a_lying_length_is_refused(tmp_path: Path, header_bytes: int) -> None:
    """The header's length is checked against the file before anything is read."""
    with pytest.raises(CorruptFileError):
        read_safetensors_header(write(tmp_path / "f", {}, b"", header_bytes))


def test_a_file_shorter_than_a_length_is_refused(tmp_path: Path) -> None:
    """Seven bytes cannot hold the length."""
    (tmp_path / "f").write_bytes(bytes(7))

    with pytest.raises(CorruptFileError, match="7 bytes"):
        read_safetensors_header(tmp_path / "f")


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    """A missing file is an error of the name, not of the format."""
    with pytest.raises(ModelNotFoundError, match="absent"):
        read_safetensors_header(tmp_path / "absent")
