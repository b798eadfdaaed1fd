"""A found model to everything that is known of it before its weights are read.

Owns which files count and what they are called; the readers of each format are in
`hf_config`, `gguf_spec`, `safetensors_header` and `gguf_file`. Reads headers only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoserve.errors import CorruptFileError, ModelNotFoundError, WeightMismatchError
from nanoserve.spec.gguf_file import GGUFFile, read_gguf
from nanoserve.spec.gguf_spec import spec_from_gguf
from nanoserve.spec.hf_config import spec_from_hf_config
from nanoserve.spec.json_file import read_json_object
from nanoserve.spec.model_dir import ModelSource
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.safetensors_header import TensorEntry, read_safetensors_header

_INDEX_FILE = "model.safetensors.index.json"
_GGUF_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id", "eos_token_ids")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk, headers read.

    Attributes:
        spec: Shape of the model.
        source: Where it lies.
        stop_token_ids: Ids that end an answer, from every file that names one.
        shards: For safetensors, the tensors of each file; empty for GGUF.
        gguf: For GGUF, the header; None for safetensors.
        config: config.json; empty for GGUF.
        generation_config: generation_config.json; empty where absent.
        tokenizer_config: tokenizer_config.json; empty where absent.
        tokenizer_path: tokenizer.json; None where absent and for GGUF.
        chat_template: Jinja source of the chat template; None where there is none.
    """

    spec: ModelSpec
    source: ModelSource
    stop_token_ids: frozenset[int]
    shards: dict[Path, dict[str, TensorEntry]] = field(default_factory=dict)
    gguf: GGUFFile | None = None
    config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    tokenizer_config: dict[str, Any] = field(default_factory=dict)
    tokenizer_path: Path | None = None
    chat_template: str | None = None


def read_checkpoint(source: ModelSource) -> Checkpoint:
    """Read the headers and settings of a model.

    Raises:
        CorruptFileError: A file contradicts its format.
        UnsupportedModelError: The architecture, or one key, is not supported.
        ModelNotFoundError: A file that must be there is not.
        WeightMismatchError: The index names tensors its shards do not have.
    """
    return _read_gguf_checkpoint(source) if source.kind == "gguf" else _read_hf_checkpoint(source)


def read_spec(source: ModelSource) -> ModelSpec:
    """Read the shape alone; for a folder this needs config.json and no weights."""
    if source.kind == "gguf":
        return spec_from_gguf(read_gguf(source.path))
    config_path = source.path / "config.json"
    return spec_from_hf_config(read_json_object(config_path), str(config_path))


def _read_hf_checkpoint(source: ModelSource) -> Checkpoint:
    config_path = source.path / "config.json"
    config = read_json_object(config_path)
    generation_path = source.path / "generation_config.json"
    generation_config = _read_optional(generation_path)
    tokenizer_config = _read_optional(source.path / "tokenizer_config.json")
    tokenizer_path = source.path / "tokenizer.json"
    stop_token_ids = _token_ids(config, "eos_token_id", config_path)
    stop_token_ids |= _token_ids(generation_config, "eos_token_id", generation_path)
    return Checkpoint(
        spec=spec_from_hf_config(config, str(config_path)),
        source=source,
        stop_token_ids=stop_token_ids,
        shards=_read_shards(source.path),
        config=config,
        generation_config=generation_config,
        tokenizer_config=tokenizer_config,
        tokenizer_path=tokenizer_path if tokenizer_path.is_file() else None,
        chat_template=_chat_template(source.path, tokenizer_config),
    )


def _read_gguf_checkpoint(source: ModelSource) -> Checkpoint:
    file = read_gguf(source.path)
    stop_token_ids: frozenset[int] = frozenset()
    for key in _GGUF_STOP_KEYS:
        stop_token_ids |= _token_ids(file.metadata, f"tokenizer.ggml.{key}", source.path)
    template = file.metadata.get("tokenizer.chat_template")
    return Checkpoint(
        spec=spec_from_gguf(file),
        source=source,
        stop_token_ids=stop_token_ids,
        gguf=file,
        chat_template=template if isinstance(template, str) else None,
    )


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _token_ids(values: Mapping[str, Any], key: str, path: Path) -> frozenset[int]:
    """Return the id, or ids, under a key; none where it is absent or null."""
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if type(token_id) is not int or token_id < 0:
            problem = f"{key} is {token_id!r:.80}; expected token ids."
            raise CorruptFileError(str(path), problem)
    return frozenset(ids)


def _chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Return the chat template: a file of its own, or a string or named list in the config."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CorruptFileError(str(path), "it is not UTF-8.") from None
        except OSError as error:
            raise CorruptFileError(str(path), f"it cannot be read ({error.strerror}).") from None
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict)]
        template = next((t.get("template") for t in named if t.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _read_shards(folder: Path) -> dict[Path, dict[str, TensorEntry]]:
    """Read the header of every shard: those the index names, or all there are."""
    index_path = folder / _INDEX_FILE
    if index_path.is_file():
        return _read_indexed_shards(folder, index_path)
    paths = sorted(folder.glob("*.safetensors"))
    single = folder / "model.safetensors"
    if single in paths:
        paths = [single]  # beside it lie adapters or copies in another layout
    if not paths:
        message = (
            f"{folder} has no *.safetensors file. Download the weights in safetensors form; "
            "pickled .bin and .pth weights are never read."
        )
        raise ModelNotFoundError(message)
    shards = {path: read_safetensors_header(path) for path in paths}
    _refuse_repeated(folder, shards)
    return shards


def _read_indexed_shards(folder: Path, index_path: Path) -> dict[Path, dict[str, TensorEntry]]:
    """Read the shards an index names; the names must be plain and each tensor where it says."""
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptFileError(str(index_path), "weight_map is not an object with entries.")
    names = set()
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise CorruptFileError(str(index_path), f"{name!r:.80} is not a file name.")
        names.add(name)
    absent = sorted(name for name in names if not (folder / name).is_file())
    if absent:
        message = (
            f"{index_path} names {len(absent)} of {len(names)} shards that are not there: "
            f"{', '.join(absent[:10])}. Download them again."
        )
        raise ModelNotFoundError(message)
    shards = {folder / name: read_safetensors_header(folder / name) for name in sorted(names)}
    missing = [name for name, file in weight_map.items() if name not in shards[folder / file]]
    if missing:
        raise WeightMismatchError(str(index_path), missing=tuple(missing))
    _refuse_repeated(folder, shards)
    return shards


def _refuse_repeated(folder: Path, shards: Mapping[Path, Mapping[str, TensorEntry]]) -> None:
    seen: dict[str, Path] = {}
    for path, entries in shards.items():
        for name in entries:
            if name in seen:
                problem = f"tensor {name!r} is in {seen[name].name} and in {path.name}."
                raise CorruptFileError(str(folder), problem)
            seen[name] = path
