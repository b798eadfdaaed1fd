"""From a name to a model: presets, folders, files, the hub's cache."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from nanoserve.errors import ModelNotFoundError, UnsupportedModelError
from nanoserve.spec.param_count import count_parameters
from nanoserve.spec.read_model import read_planned_model
from nanoserve.spec.served_spec import served_spec
from tests.shape_cases import TINY


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, int]) -> Path:
    """Write a config and a safetensors file whose tensors have so many bf16 values."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, position = {}, 0
    for name, num_values in tensors.items():
        end = position + 2 * num_values
        header[name] = {"dtype": "BF16", "shape": [num_values], "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(position)
    (folder / "model.safetensors").write_bytes(content)
    return folder


def test_a_folder_is_read_to_the_byte(tmp_path: Path) -> None:
    """Tensors of the files are summed; layers past the model's own are left out."""
    tensors = {"model.layers.0.a.weight": 100, "model.layers.4.mtp.weight": 7, "mtp.norm": 3}
    model = read_planned_model(str(write_folder(tmp_path / "tiny", TINY, tensors)))

    assert model.file_bytes == 200
    assert model.weight_source == "safetensors headers"
    assert model.name == "tiny"


def test_a_folder_without_weights_follows_its_config(tmp_path: Path) -> None:
    """A config alone is enough."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    model = read_planned_model(str(tmp_path))

    assert model.file_bytes is None
    assert model.weight_source == "config"
    assert read_planned_model(str(tmp_path / "config.json")).shape == model.shape


def test_shards_that_are_missing_are_not_summed(tmp_path: Path) -> None:
    """An index that names a file which is not there leaves the weights to the config."""
    write_folder(tmp_path, TINY, {"a": 1})
    index = {"weight_map": {"a": "model.safetensors", "b": "absent.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    assert read_planned_model(str(tmp_path)).file_bytes is None


def test_modelopt_has_a_file_of_its_own(tmp_path: Path) -> None:
    """hf_quant_config.json says what config.json does not."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    section = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(section))

    assert read_planned_model(str(tmp_path)).weight_format.name == "nvfp4"


def test_the_hubs_cache_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id that was downloaded before needs no network."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    snapshot = tmp_path / "hub/models--some--model/snapshots/abc"
    write_folder(snapshot, TINY, {"a": 1})

    assert read_planned_model("some/model").name == "some/model"


@pytest.mark.parametrize("name", ["absent", "a/b", "../../etc/passwd", "x" * 5000, "a\0b", ""])
def test_what_leads_nowhere_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is nothing is refused with what to do."""
    monkeypatch.setenv("HF_HOME", "/nonexistent")
    with pytest.raises(ModelNotFoundError):
        read_planned_model(name)


def test_a_folder_of_nothing_is_refused(tmp_path: Path) -> None:
    """A folder without a config and a file of another kind are said to be that."""
    (tmp_path / "notes.txt").write_text("hello")

    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        read_planned_model(str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="neither a config"):
        read_planned_model(str(tmp_path / "notes.txt"))


def test_our_decoder_serves_some() -> None:
    """The spec of a preset that our own server knows, with the same parameters."""
    model = read_planned_model("llama-3.2-1b")

    assert count_parameters(served_spec(model)) == count_parameters(model.shape)
    with pytest.raises(UnsupportedModelError):
        served_spec(read_planned_model("gemma-3-27b"))


def test_nobodys_home_is_no_model() -> None:
    """A tilde that means no user is a path like another."""
    with pytest.raises(ModelNotFoundError):
        read_planned_model("~nobody-here/model")
