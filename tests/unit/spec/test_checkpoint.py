"""Everything known of a model before its weights: settings, stop ids, shards."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from nanoserve.errors import CorruptFileError, ModelNotFoundError, WeightMismatchError
from nanoserve.spec.checkpoint import Checkpoint, read_checkpoint
from nanoserve.spec.model_dir import ModelSource, resolve_model

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 40,
    "max_position_embeddings": 128,
}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def write_shard(path: Path, *names: str) -> None:
    """Write a safetensors file with one byte per tensor."""
    header = {
        name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i, name in enumerate(names)
    }
    content = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + bytes(len(names)))


def write_folder(folder: Path, **config: Any) -> Path:
    write_json(folder / "config.json", {**CONFIG, **config})
    write_shard(folder / "model.safetensors", "w")
    return folder


def read(folder: Path) -> Checkpoint:
    return read_checkpoint(ModelSource("hf", folder, "tiny"))


def write_gguf(path: Path, **keys: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in keys.items():
        name = f"tokenizer.{key}" if key == "chat_template" else f"tokenizer.ggml.{key}"
        if isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.add_tensor("token_embd.weight", np.zeros((40, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_stop_ids_are_the_union_of_both_files(tmp_path: Path) -> None:
    """config.json and generation_config.json each add theirs, as a number or a list."""
    write_folder(tmp_path, eos_token_id=2)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [2, 7, 9]})

    assert read(tmp_path).stop_token_ids == {2, 7, 9}


def test_no_stop_id_is_none_at_all(tmp_path: Path) -> None:
    """Null and absent both mean that no id ends an answer."""
    write_folder(tmp_path, eos_token_id=None)

    checkpoint = read(tmp_path)

    assert checkpoint.stop_token_ids == frozenset()


@pytest.mark.parametrize("bad", ["2", -1, [2, "x"], 1.5, True, {"a": 1}])
def test_impossible_stop_ids_are_refused(tmp_path: Path, bad: Any) -> None:
    """A stop id is an integer from 0."""
    with pytest.raises(CorruptFileError, match="eos_token_id"):
        read(write_folder(tmp_path, eos_token_id=bad))


def test_gguf_stop_ids_are_the_union_of_its_keys(tmp_path: Path) -> None:
    """eos, eot, eom and the list of eos ids all end an answer."""
    path = write_gguf(
        tmp_path / "t.gguf", eos_token_id=2, eot_token_id=3, eom_token_id=4, eos_token_ids=[2, 5]
    )

    assert read_checkpoint(resolve_model(str(path))).stop_token_ids == {2, 3, 4, 5}


def test_the_default_model_is_read_whole() -> None:
    """SmolLM2 is one GGUF file that stops at <|im_end|>."""
    checkpoint = read_checkpoint(resolve_model("smollm2"))

    assert checkpoint.stop_token_ids == {2}
    assert checkpoint.gguf is not None
    assert checkpoint.shards == {}


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    """A folder with nothing but config.json has no model to serve."""
    write_json(tmp_path / "config.json", CONFIG)

    with pytest.raises(ModelNotFoundError, match=r"no \*\.safetensors"):
        read(tmp_path)


def test_all_shards_count_without_an_index(tmp_path: Path) -> None:
    """Without model.safetensors and index, every safetensors file is a shard."""
    write_json(tmp_path / "config.json", CONFIG)
    write_shard(tmp_path / "b.safetensors", "y")
    write_shard(tmp_path / "a.safetensors", "x")

    shards = read(tmp_path).shards

    assert [(path.name, list(entries)) for path, entries in shards.items()] == [
        ("a.safetensors", ["x"]),
        ("b.safetensors", ["y"]),
    ]


def test_files_beside_the_single_one_are_left(tmp_path: Path) -> None:
    """Where there is model.safetensors, others are copies or adapters."""
    write_folder(tmp_path)
    write_shard(tmp_path / "consolidated.safetensors", "other")

    assert [path.name for path in read(tmp_path).shards] == ["model.safetensors"]


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    """Nobody can know which of two copies is meant."""
    write_json(tmp_path / "config.json", CONFIG)
    write_shard(tmp_path / "a.safetensors", "x")
    write_shard(tmp_path / "b.safetensors", "x")

    with pytest.raises(CorruptFileError, match=r"'x' is in a\.safetensors and in b\.safetensors"):
        read(tmp_path)


def write_indexed(folder: Path, weight_map: Any) -> Path:
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    write_shard(folder / "1.safetensors", "x")
    write_shard(folder / "2.safetensors", "y")
    return folder


def test_the_index_names_the_shards(tmp_path: Path) -> None:
    """Only files the index names are read."""
    write_indexed(tmp_path, {"y": "2.safetensors", "x": "1.safetensors"})
    write_shard(tmp_path / "3.safetensors", "x")

    assert [path.name for path in read(tmp_path).shards] == ["1.safetensors", "2.safetensors"]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    """A download that stopped early says which file to fetch."""
    write_indexed(tmp_path, {"x": "1.safetensors", "z": "9.safetensors"})

    with pytest.raises(ModelNotFoundError, match=r"1 of 2 shards.*9\.safetensors"):
        read(tmp_path)


def test_a_tensor_that_is_not_in_its_shard_is_named(tmp_path: Path) -> None:
    """The index and the shards must agree."""
    write_indexed(tmp_path, {"x": "1.safetensors", "y": "1.safetensors"})

    with pytest.raises(WeightMismatchError, match="y") as caught:
        read(tmp_path)

    assert caught.value.missing == ("y",)


@pytest.mark.parametrize(
    "weight_map",
    [None, {}, [], {"x": 3}, {"x": "../1.safetensors"}, {"x": "/etc/passwd"}, {"x": ".."}],
)
def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path, weight_map: Any) -> None:
    """Shards are plain file names in the same folder."""
    with pytest.raises((CorruptFileError, ModelNotFoundError), match=r"index\.json"):
        read(write_indexed(tmp_path, weight_map))


def test_an_index_that_names_no_shard_for_a_tensor_is_refused(tmp_path: Path) -> None:
    """An empty name is the folder itself, and no file that could be downloaded again."""
    with pytest.raises(CorruptFileError, match=r"index\.json.*'' is not a file name"):
        read(write_indexed(tmp_path, {"x": "1.safetensors", "y": ""}))


def test_a_config_that_is_not_json_is_corrupt(tmp_path: Path) -> None:
    """Bad JSON names the file."""
    (tmp_path / "config.json").write_text("{")

    with pytest.raises(CorruptFileError, match=r"config\.json"):
        read(tmp_path)
