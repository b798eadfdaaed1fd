"""Bytes of weights as their files have them: from safetensors headers, no tensor read."""

import re
from pathlib import Path

from nanoserve.spec.json_file import read_json_object
from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.safetensors_header import TensorEntry, read_safetensors_header

_INDEX_FILE = "model.safetensors.index.json"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,5})\.")
_DRAFT = re.compile(r"^(?:mtp|model\.mtp)")


def safetensors_bytes(folder: Path, shape: ModelShape) -> int | None:
    """Return the bytes of the tensors an engine loads; None where files are missing.

    Layers past the model's own guess tokens ahead, and are left out. A float32 tensor of a
    model without quantisation is loaded in 16 bits; beside quantised weights it is a scale.

    Raises:
        CorruptFileError: A header contradicts itself.
    """
    paths = _shards(folder)
    if not paths or not all(path.is_file() for path in paths):
        return None
    halves_floats = shape.quantization is None and shape.dtype in (None, "float32")
    total = 0
    for path in paths:
        for name, entry in read_safetensors_header(path).items():
            if not _is_draft(name, len(shape.layers)):
                total += _loaded_bytes(entry, halves_floats)
    return total


def _shards(folder: Path) -> list[Path]:
    index = folder / _INDEX_FILE
    if not index.is_file():
        single = folder / "model.safetensors"
        return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    weight_map = read_json_object(index).get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    plain = [name for name in names if isinstance(name, str) and Path(name).name == name]
    return [folder / name for name in sorted(plain)] if len(plain) == len(names) else []


def _is_draft(name: str, num_layers: int) -> bool:
    layer = _LAYER.search(name)
    is_past = layer is not None and "vision" not in name and int(layer[1]) >= num_layers
    return is_past or _DRAFT.match(name) is not None


def _loaded_bytes(entry: TensorEntry, halves_floats: bool) -> int:
    num_bytes = entry.end - entry.start
    return num_bytes // 2 if halves_floats and entry.dtype == "F32" else num_bytes
