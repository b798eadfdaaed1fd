"""A found model to everything that is known of it before its weights are read.

Owns which weight files count and where stop ids stand; the readers of each format are in
`hf_config`, `gguf_spec`, `safetensors_header` and `gguf_file`. Reads headers only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoserve.errors import CorruptFileError, ModelNotFoundError, WeightMismatchError
from nanoserve.spec.file_identity import FileIdentity, read_identity
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
        identities: Of the weight files before their headers were read, in the order they
            are read; empty where one of them could not be asked.
    """

    spec: ModelSpec
    source: ModelSource
    stop_token_ids: frozenset[int]
    shards: dict[Path, dict[str, TensorEntry]] = field(default_factory=dict)
    gguf: GGUFFile | None = None
    identities: dict[Path, FileIdentity] = field(default_factory=dict)


def read_checkpoint(source: ModelSource) -> Checkpoint:
    """Read the headers and settings of a model.

    Raises:
        CorruptFileError: A file contradicts its format.
        UnsupportedModelError: The architecture, or one key, is not supported.
        ModelNotFoundError: A file that must be there is not.
        WeightMismatchError: The index names tensors its shards do not have.
    """
    return _read_gguf_checkpoint(source) if source.kind == "gguf" else _read_hf_checkpoint(source)


def _read_hf_checkpoint(source: ModelSource) -> Checkpoint:
    config_path = source.path / "config.json"
    config = read_json_object(config_path)
    generation_path = source.path / "generation_config.json"
    generation_config = read_json_object(generation_path) if generation_path.is_file() else {}
    stop_token_ids = _token_ids(config, "eos_token_id", config_path)
    stop_token_ids |= _token_ids(generation_config, "eos_token_id", generation_path)
    spec = spec_from_hf_config(config, str(config_path))
    weight_map = _read_weight_map(source.path)
    paths = _find_shards(source.path) if weight_map is None else _named_shards(weight_map)
    identities = _identify(paths)
    return Checkpoint(
        spec=spec,
        source=source,
        stop_token_ids=stop_token_ids,
        shards=_read_shards(source.path, paths, weight_map or {}),
        identities=identities,
    )


def _read_gguf_checkpoint(source: ModelSource) -> Checkpoint:
    identities = _identify([source.path])
    file = read_gguf(source.path)
    stop_token_ids: frozenset[int] = frozenset()
    for key in _GGUF_STOP_KEYS:
        stop_token_ids |= _token_ids(file.metadata, f"tokenizer.ggml.{key}", source.path)
    return Checkpoint(
        spec=spec_from_gguf(file),
        source=source,
        stop_token_ids=stop_token_ids,
        gguf=file,
        identities=identities,
    )


def _identify(paths: Iterable[Path]) -> dict[Path, FileIdentity]:
    """Return what the files are now; the readers of their headers say what is wrong with one."""
    try:
        return {path: read_identity(path) for path in paths}
    except OSError:
        return {}


def _token_ids(values: Mapping[str, Any], key: str, path: Path) -> frozenset[int]:
    """Return the id, or ids, under a key; none where it is absent or null."""
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if type(token_id) is not int or token_id < 0:
            problem = f"{key} is {token_id!r:.80}; expected token ids."
            raise CorruptFileError(str(path), problem)
    return frozenset(ids)


def _find_shards(folder: Path) -> list[Path]:
    """Return the weight files of a folder without an index: all there are."""
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
    return paths


def _read_weight_map(folder: Path) -> dict[str, Path] | None:
    """Return the shard of each tensor an index names, its name plain; None without an index."""
    index_path = folder / _INDEX_FILE
    if not index_path.is_file():
        return None
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptFileError(str(index_path), "weight_map is not an object with entries.")
    for name in weight_map.values():
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise CorruptFileError(str(index_path), f"{name!r:.80} is not a file name.")
    return {tensor: folder / name for tensor, name in weight_map.items()}


def _named_shards(weight_map: Mapping[str, Path]) -> list[Path]:
    """Return the weight files an index names; all must be there."""
    paths = sorted(set(weight_map.values()))
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        message = (
            f"{paths[0].parent / _INDEX_FILE} names {len(absent)} of {len(paths)} shards that are "
            f"not there: {', '.join(absent[:10])}. Download them again."
        )
        raise ModelNotFoundError(message)
    return paths


def _read_shards(
    folder: Path, paths: Iterable[Path], weight_map: Mapping[str, Path]
) -> dict[Path, dict[str, TensorEntry]]:
    """Read the header of every shard; each tensor must be where the index says."""
    shards = {path: read_safetensors_header(path) for path in paths}
    missing = [name for name, path in weight_map.items() if name not in shards[path]]
    if missing:
        raise WeightMismatchError(str(folder / _INDEX_FILE), missing=tuple(missing))
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
