"""A model's name to `PlannedModel`: a preset, a folder, a config.json, or a .gguf file.

Reads headers and configs, never weights, and asks no network. A path that exists goes before
a preset of the same name.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanoserve.error_reasons import reason_of
from nanoserve.errors import ModelNotFoundError
from nanoserve.spec.json_file import read_json_object
from nanoserve.spec.model_dir import PRESETS, resolve_model
from nanoserve.spec.planned_model import PlannedModel
from nanoserve.spec.presets import find_preset, nearest_presets
from nanoserve.spec.read_shape import read_model_shape
from nanoserve.spec.stored_bytes import safetensors_bytes

_HUB_CACHE = "models--{}/snapshots"


def read_planned_model(name: str) -> PlannedModel:
    """Return what a plan must know of a model.

    Args:
        name: Preset, hub id that is packaged or in the local cache of the hub, folder with a
            config.json, the file itself, or a .gguf file.

    Raises:
        ModelNotFoundError: The name leads to nothing; the nearest presets are named.
        UnsupportedModelError: An architecture or a quantisation that is not known.
        CorruptFileError: A file contradicts its format.
    """
    path = Path(os.path.expanduser(name))  # unlike Path's, leaves the home of nobody as it is
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:  # too long a name, or a folder on the way that may not be entered
        message = f"{name[:200]!r} cannot be looked up: {reason_of(error)}. Check the path."
        raise ModelNotFoundError(message) from None
    except ValueError:
        message = f"{name[:200]!r} is no path: it holds a null character."
        raise ModelNotFoundError(message) from None
    if is_folder:
        return _read_folder(path, path.resolve().name)
    if is_file:
        return _read_file(path)
    if name in PRESETS:
        return replace(_read_gguf(resolve_model(name).path), name=name)
    preset = find_preset(name)
    if preset is not None:
        return planned_model_of(preset.model, preset.config, "config.json")
    cached = _cached_snapshot(name)
    if cached is not None:
        return _read_folder(cached, name)
    raise ModelNotFoundError(_not_found(name))


def planned_model_of(name: str, config: Mapping[str, Any], path: str) -> PlannedModel:
    """Return the model that a parsed config.json describes.

    Args:
        name: For people and for commands.
        config: The object in the file.
        path: Of the file, for errors.
    """
    shape = read_model_shape(config, path)
    model = PlannedModel(name, shape, config=config)
    return _with_quantization(model, shape.quantization, path)


def _with_quantization(
    model: PlannedModel, section: Mapping[str, Any] | None, path: str
) -> PlannedModel:
    if not section:
        return model
    from nanoserve.spec.quant_config import read_quant_config  # plain models do without

    found = read_quant_config(section, path, len(model.shape.layers))
    return replace(
        model,
        weight_format=found.weight_format,
        quant_method=found.method,
        kv_cache_dtype=found.kv_cache_dtype,
        kept=found.kept,
    )


def _read_file(path: Path) -> PlannedModel:
    if path.suffix == ".gguf":
        return _read_gguf(path)
    if path.suffix != ".json":
        message = f"{path} is neither a config.json nor a .gguf file."
        raise ModelNotFoundError(message)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return replace(planned_model_of(name, read_json_object(path), str(path)), path=str(path.parent))


def _read_folder(folder: Path, name: str) -> PlannedModel:
    """Read a folder: its config.json with the headers beside it, or its one .gguf file."""
    config_path = folder / "config.json"
    if not config_path.is_file():
        gguf_files = sorted(folder.glob("*.gguf"))
        if len(gguf_files) == 1:
            return _read_gguf(gguf_files[0])
        names = ", ".join(file.name for file in gguf_files[:10])
        has = f"{len(gguf_files)} .gguf files; give the path of one: {names}" if names else "none"
        message = f"{folder} has no config.json, and of .gguf files: {has}."
        raise ModelNotFoundError(message)
    model = replace(
        planned_model_of(name, read_json_object(config_path), str(config_path)), path=str(folder)
    )
    modelopt_path = folder / "hf_quant_config.json"
    if model.quant_method is None and modelopt_path.is_file():
        section = read_json_object(modelopt_path)
        model = _with_quantization(
            model, section | {"quant_method": "modelopt"}, str(modelopt_path)
        )
    return _with_file_bytes(model, folder)


def _with_file_bytes(model: PlannedModel, folder: Path) -> PlannedModel:
    """Sum the tensors of the safetensors files, if all that there should be are there."""
    num_bytes = safetensors_bytes(folder, model.shape)
    if num_bytes is None:
        return model
    return replace(model, file_bytes=num_bytes, weight_source="safetensors headers")


def _read_gguf(path: Path) -> PlannedModel:
    from nanoserve.spec.gguf_model import gguf_model  # 15 ms that other models do without

    return gguf_model(path)


def _cached_snapshot(name: str) -> Path | None:
    """Return the newest snapshot of a hub id in the hub's local cache; None without one."""
    organisation, _, model = name.partition("/")
    if not organisation or not model or "/" in model or ".." in name:
        return None
    home = Path(os.path.expanduser(os.environ.get("HF_HOME", "~/.cache/huggingface")))
    snapshots = home / "hub" / _HUB_CACHE.format(f"{organisation}--{model}")
    try:
        found = [path for path in snapshots.iterdir() if (path / "config.json").is_file()]
        return max(found, key=lambda path: path.stat().st_mtime, default=None)
    except (OSError, ValueError):
        return None


def _not_found(name: str) -> str:
    nearest = ", ".join(nearest_presets(name))
    known = f" Nearest: {nearest}." if nearest else ""
    return (
        f"There is no file, folder or preset {name[:200]!r}.{known} "
        "Give the folder of a model or its config.json, or list what is known by name with "
        "--list-models."
    )
