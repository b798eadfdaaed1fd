"""GGUF headers are read as gguf's own reader reads them, and damaged ones are refused."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from nanoserve.errors import CorruptFileError, ModelNotFoundError, UnsupportedModelError
from nanoserve.spec.gguf_file import read_gguf, read_gguf_floats
from nanoserve.spec.model_dir import resolve_model
from tests.unit.spec.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U32,
    array,
    gguf_bytes,
    key_value,
    tensor_info,
    text,
    write,
)
from tests.work_count import MAX_GROWTH, growth, work_of

MAX_CALLS_PER_STRING = 4


def write_sample(path: Path) -> Path:
    """Write a file with every kind of value and three tensor types, by gguf's writer."""
    writer = gguf.GGUFWriter(path, "llama")
    for bits in (8, 16, 32, 64):
        getattr(writer, f"add_uint{bits}")(f"x.u{bits}", 2**bits - 1)
        getattr(writer, f"add_int{bits}")(f"x.i{bits}", -(2 ** (bits - 1)))
    writer.add_float32("x.f32", 0.1)
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.yes", True)
    writer.add_string("x.text", "naïve 🙂")
    writer.add_array("x.strings", ["a", "", "é"])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.floats", [0.5, 1.5])
    writer.add_array("x.flags", [True, False])
    weights = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    writer.add_tensor("plain", weights)
    writer.add_tensor("half", weights[:3].astype(np.float16))
    q4 = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("packed", q4, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("last", np.arange(3, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_equals_the_reference_reader(tmp_path: Path) -> None:
    """Every key has the value gguf's own reader finds."""
    path = write_sample(tmp_path / "sample.gguf")

    metadata = read_gguf(path).metadata

    reference = gguf.GGUFReader(path).fields
    expected = {key: f.contents() for key, f in reference.items() if not key.startswith("GGUF.")}
    assert metadata == expected
    assert isinstance(metadata["x.yes"], bool)


def test_tensors_equal_the_reference_reader(tmp_path: Path) -> None:
    """Names, shapes, types and places are those gguf's own reader finds."""
    path = write_sample(tmp_path / "sample.gguf")

    tensors = read_gguf(path).tensors

    reference = gguf.GGUFReader(path).tensors
    assert list(tensors) == [tensor.name for tensor in reference]
    for expected in reference:
        tensor = tensors[expected.name]
        assert tensor.shape == tuple(int(size) for size in reversed(expected.shape))
        assert tensor.type_name == expected.tensor_type.name
        assert (tensor.offset, tensor.num_bytes) == (expected.data_offset, expected.n_bytes)


def test_small_float_tensors_are_read_in_place(tmp_path: Path) -> None:
    """A tensor of floats comes back as numbers; one of another type is refused."""
    file = read_gguf(write_sample(tmp_path / "sample.gguf"))

    assert read_gguf_floats(file, "last") == (0.0, 1.0, 2.0)
    with pytest.raises(CorruptFileError, match="Q4_1, not F32"):
        read_gguf_floats(file, "packed")


def test_the_default_model_is_read_in_few_calls() -> None:
    """Three for each of its strings, and the rest hardly counts; gguf's reader makes 67."""
    path = resolve_model("smollm2").path
    file = read_gguf(path)
    num_strings = sum(len(file.metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "merges"))

    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert len(file.tensors) == 272
    assert work_of(lambda: read_gguf(path)).num_calls < MAX_CALLS_PER_STRING * num_strings


def test_work_grows_with_the_header_alone(tmp_path: Path) -> None:
    """Four times as many keys, strings and tensors take four times the work."""
    small, large = (_long_header(tmp_path / f"{size}.gguf", size) for size in (500, 2000))

    assert growth(read_gguf, small, large) <= MAX_GROWTH


def _long_header(path: Path, size: int) -> Path:
    strings = key_value("strings", ARRAY, array(STRING, size, text("word") * size))
    keys = [key_value(f"key.{index}", U8, b"\x01") for index in range(size)]
    tensors = [tensor_info(f"tensor.{index}") for index in range(size)]
    return write(path, gguf_bytes([strings, *keys], tensors, bytes(64)))


def test_nested_arrays_are_lists_of_lists(tmp_path: Path) -> None:
    """An array of arrays keeps its shape."""
    inner = array(U8, 2, b"\x01\x02") + array(STRING, 1, text("x"))
    content = gguf_bytes([key_value("k", ARRAY, array(ARRAY, 2, inner))])

    assert read_gguf(write(tmp_path / "f.gguf", content)).metadata == {"k": [[1, 2], ["x"]]}


def test_version_2_is_read_and_alignment_obeyed(tmp_path: Path) -> None:
    """A file may align its data to other than 32 bytes."""
    content = gguf_bytes(
        [key_value("general.alignment", U32, struct.pack("<I", 256))],
        [tensor_info(dims=(4, 2))],
        bytes(32),
        version=2,
        alignment=256,
    )

    tensor = read_gguf(write(tmp_path / "f.gguf", content)).tensors["t"]

    assert (tensor.shape, tensor.offset, tensor.num_bytes) == ((2, 4), 256, 32)


def deep_array(depth: int) -> bytes:
    payload = array(U8, 1, b"\x00")
    for _ in range(depth):
        payload = array(ARRAY, 1, payload)
    return payload


HUGE = 2**63
ALIGN = "general.alignment"
DAMAGED = {
    "empty": (b"", "empty"),
    "no magic": (b"GGML" + bytes(40), "does not begin with GGUF"),
    "cut in the magic": (b"GG", "the file ends"),
    "too many tensors": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "tensors are announced"),
    "too many keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "metadata keys are announced"),
    "a key longer than the file": (
        gguf_bytes([struct.pack("<Q", 60000) + b"k" * 9]),
        "the file ends",
    ),
    "a key of a megabyte": (gguf_bytes([text("k" * 2**20)]), "a name of"),
    "a key that is not UTF-8": (gguf_bytes([text(b"\xff" * 20)]), "not UTF-8"),
    "a key twice": (gguf_bytes([key_value("k", U8, b"\x01")] * 2), "there twice"),
    "an unknown value type": (gguf_bytes([key_value("k", 13, bytes(8))]), "value type 13"),
    "a boolean of 2": (gguf_bytes([key_value("k", BOOL, b"\x02")]), "neither 0 nor 1"),
    "a string past the end": (
        gguf_bytes([key_value("k", STRING, struct.pack("<Q", HUGE))]),
        "the file ends",
    ),
    "an array past the end": (
        gguf_bytes([key_value("k", ARRAY, array(F32, HUGE, b""))]),
        "array items are announced",
    ),
    "an array of an unknown type": (
        gguf_bytes([key_value("k", ARRAY, array(77, 1, b"\x00"))]),
        "value type 77",
    ),
    "an array of too many items": (
        gguf_bytes([key_value("k", ARRAY, array(U8, 2**24 + 1, bytes(2**24 + 1)))]),
        "at most 16,777,216",
    ),
    "arrays too deep": (gguf_bytes([key_value("k", ARRAY, deep_array(4))]), "nested"),
    "strings past the end": (
        gguf_bytes([key_value("k", ARRAY, array(STRING, 2, text("ab") + struct.pack("<Q", HUGE)))]),
        "runs past the end",
    ),
    "strings that end early": (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 1)
        + key_value("k", ARRAY, array(STRING, 2, text("a" * 40)))
        + bytes(3),
        "ends inside an array",
    ),
    "a string in an array that is not UTF-8": (
        gguf_bytes([key_value("k", ARRAY, array(STRING, 1, text(b"\xc3(")))]),
        "not UTF-8",
    ),
    "an alignment of 0": (gguf_bytes([key_value(ALIGN, U32, bytes(4))]), "alignment is 0"),
    "an alignment of 24": (
        gguf_bytes([key_value(ALIGN, U32, struct.pack("<I", 24))]),
        "alignment is 24",
    ),
    "a negative alignment": (
        gguf_bytes([key_value(ALIGN, I32, struct.pack("<i", -32))]),
        "alignment is -32",
    ),
    "an alignment of text": (gguf_bytes([key_value(ALIGN, STRING, text("32"))]), "alignment is"),
    "no dimension": (gguf_bytes((), [tensor_info(dims=())], bytes(64)), "0 dimensions"),
    "five dimensions": (gguf_bytes((), [tensor_info(dims=(1,) * 5)], bytes(64)), "5 dimensions"),
    "a dimension of 0": (gguf_bytes((), [tensor_info(dims=(0, 8))], bytes(64)), "has shape"),
    "a row of half a block": (
        gguf_bytes((), [tensor_info(dims=(16, 2), type_id=2)], bytes(64)),
        "type Q4_0 has shape",
    ),
    "dimensions that overflow 64 bits": (
        gguf_bytes((), [tensor_info(dims=(2**32, 2**33))], bytes(64)),
        "should lie at",
    ),
    "a tensor twice": (gguf_bytes((), [tensor_info()] * 2, bytes(32)), "there twice"),
    "a tensor past the end": (gguf_bytes((), [tensor_info()], bytes(31)), "should lie at"),
    "an offset past the end": (
        gguf_bytes((), [tensor_info(offset=2**63)], bytes(32)),
        "should lie at",
    ),
    "an offset that is not aligned": (
        gguf_bytes((), [tensor_info(offset=4)], bytes(64)),
        "aligned to 32",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    """Each contradiction gives a CorruptFileError with the path and a byte offset in the file."""
    content, match = DAMAGED[name]
    path = write(tmp_path / "damaged.gguf", content)

    with pytest.raises(CorruptFileError, match=match) as caught:
        read_gguf(path)

    assert caught.value.path == str(path)
    assert caught.value.offset is not None
    assert 0 <= caught.value.offset <= len(content)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (gguf_bytes(version=1), "version 1"),
        (gguf_bytes(version=99), "version 99"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (gguf_bytes((), [tensor_info(type_id=250)], bytes(64)), "'t'.*storage type 250"),
    ],
)
def test_what_is_not_known_is_unsupported(tmp_path: Path, content: bytes, match: str) -> None:
    """Other versions, byte orders and tensor types are refused by name."""
    with pytest.raises(UnsupportedModelError, match=match):
        read_gguf(write(tmp_path / "other.gguf", content))


def test_a_file_that_cannot_be_opened_is_not_found(tmp_path: Path) -> None:
    """A path that does not exist, or is a folder, is an error of the name."""
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        read_gguf(tmp_path)
