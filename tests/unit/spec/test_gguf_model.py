"""A .gguf file as a model to plan: its header's bytes, and an average for what it does not say."""

import struct
from pathlib import Path

from nanoserve.spec.gguf_model import gguf_model
from nanoserve.spec.read_model import read_planned_model
from tests.unit.spec.gguf_bytes import STRING, U32, gguf_bytes, key_value, tensor_info, text, write

SIZES = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}


def tiny_file(folder: Path) -> Path:
    """Write a header of a llama with an embedding in F16 and a norm in F32."""
    keys = [key_value("general.architecture", STRING, text("llama"))]
    keys += [
        key_value(f"llama.{name}", U32, struct.pack("<I", size)) for name, size in SIZES.items()
    ]
    tensors = [
        tensor_info("token_embd.weight", (64, 128), type_id=1),
        tensor_info("output_norm.weight", (64,), type_id=0, offset=64 * 128 * 2),
    ]
    data = bytes(64 * 128 * 2 + 64 * 4)
    return write(folder / "tiny.gguf", gguf_bytes(keys, tensors, data))


def test_weights_are_read_to_the_byte(tmp_path: Path) -> None:
    """Bytes of all tensors, and the type that most of them are in."""
    model = gguf_model(tiny_file(tmp_path))

    assert model.file_bytes == 64 * 128 * 2 + 64 * 4
    assert model.weight_format.name == "F16"
    assert 16 < model.weight_format.value_bits < 16.2
    assert len(model.shape.layers) == 2


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    """A folder with one .gguf file leads to it."""
    path = tiny_file(tmp_path)

    assert read_planned_model(str(path)) == read_planned_model(str(tmp_path))
    assert read_planned_model(str(path)).weight_source == "GGUF header"
