"""Packed weights on disk, so that the next start maps them instead of packing.

One file for each model and set of formats. Its key stands for everything the bytes depend on,
first of all the SHA-256 of the model files; a file that was cut short, damaged or made for
something else is deleted, and the weights are packed again. It may be deleted at any time.

```
model files known by their identities ---------------> hash -> map the file of that key
not known, a packed file of such a model is there ---> read and hash -> map it
not known, none is there ----------------------------> pack; then hash and write, in a thread
```

Owns the key and the order of parts; the file is `weight_file`'s, the folder `cached_files`',
the hashes `file_hashes`'.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from nanoserve.kernels import packed_weight
from nanoserve.kernels.packed_weight import PackedWeight
from nanoserve.options import DEFAULT_WEIGHT_CACHE_BYTES
from nanoserve.plan.weight_plan import LinearFormat
from nanoserve.spec.checkpoint import Checkpoint
from nanoserve.units import MIB
from nanoserve.weights.cached_files import CachedFiles
from nanoserve.weights.file_hashes import FileHashes, ModelFiles
from nanoserve.weights.weight_file import file_bytes, read_image, write_image

LEAST_BYTES = 8 * MIB  # of weights that are kept: fewer are packed in some 10 ms
_HASHES = "hashes"  # of model files, in a folder of their own
_HASH_THREADS = 2  # model files read at once
_SAMPLES = 64  # pieces of each model file that tell most models apart
_SAMPLE_BYTES = 4096
_NAME_DIGITS = 16  # of each part of a file's name, hexadecimal


@dataclass(frozen=True, slots=True)
class WeightCache:
    """Where packed weights lie.

    Attributes:
        folder: Need not exist.
        max_bytes: Most bytes there; what was not used for longest goes first. 0 keeps none.
        least_bytes: Of weights that are kept.
        sources: Modules, beside its own, that the bytes of packed weights depend on.
    """

    folder: Path
    max_bytes: int = DEFAULT_WEIGHT_CACHE_BYTES
    least_bytes: int = LEAST_BYTES
    sources: tuple[Path, ...] = ()

    def entry(
        self,
        checkpoint: Checkpoint,
        formats: Mapping[str, LinearFormat],
        weights: Mapping[str, PackedWeight],
    ) -> "CacheEntry | None":
        """Return the place of a model's packed weights.

        Args:
            checkpoint: Its files.
            formats: Of every packed parameter.
            weights: Without values, in one piece of memory, as `allocate_weights` makes them.

        Returns:
            None where they are not kept: they are too few or too many, or what they depend
            on cannot be read.
        """
        image = _image(weights.values())
        is_worth_it = image.numel() >= max(1, self.least_bytes)
        is_too_much = file_bytes(image.numel()) > self.max_bytes
        if not is_worth_it or is_too_much or not checkpoint.identities:
            return None
        try:
            settings = settings_key(checkpoint, formats, self.sources)
        except OSError:
            return None
        files = CachedFiles(self.folder, self.max_bytes)
        model_files = ModelFiles(checkpoint.identities, FileHashes(self.folder / _HASHES))
        model_hash = model_files.known_hash()
        if model_hash is None and files.has_any(_digits(settings)):
            with ThreadPoolExecutor(_HASH_THREADS) as threads:
                model_hash = model_files.hash(threads)
        return CacheEntry(files, model_files, settings, model_hash, dict(weights), image)

    def exceeding_bytes(self, weights: Mapping[str, PackedWeight]) -> int:
        """Return the bytes of these weights' file if that is more than the bound; else 0.

        Who keeps none has nothing to learn of it: 0 then, too.
        """
        num_bytes = file_bytes(_image(weights.values()).numel())
        return num_bytes if num_bytes > self.max_bytes > 0 else 0


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One model's packed weights, there or not.

    Attributes:
        files: The folder.
        model_files: What the weights are packed from.
        settings: 32 bytes; see `settings_key`.
        model_hash: 32 bytes; None where it is not known: no file here can be the model's, or
            one of its files has changed.
        weights: Without values until they are packed.
        image: Their memory, uint8.
    """

    files: CachedFiles
    model_files: ModelFiles
    settings: bytes
    model_hash: bytes | None
    weights: dict[str, PackedWeight]
    image: Tensor

    def read(self) -> "CachedWeights | None":
        """Return the weights of an earlier start; None where there are none to be used.

        A file that cannot be used is deleted. `weights` then hold anything.
        """
        if self.model_hash is None:
            return None
        path = self.files.path(self._name(self.model_hash))
        try:
            stored = read_image(path, self._key(self.model_hash), self.image)
            if stored is None:
                path.unlink()
                return None
        except OSError:
            return None
        with contextlib.suppress(OSError):  # a cache that may only be read is one, too
            os.utime(path)  # used now
        moved = {
            name: _move(weight, self.image, stored.memory) for name, weight in self.weights.items()
        }
        return CachedWeights(moved, stored.mapped_bytes)

    def has_room(self) -> bool:
        """Whether the weights could be written now: the disk has room and the folder is ours.

        Older files stay: they go when these are written, and not where packing fails before.
        """
        return self.files.has_room(file_bytes(self.image.numel()))

    def keep(self) -> threading.Thread:
        """Begin to write the weights, which have their values now, beside whatever goes on.

        The thread does not hold up the end of the process: what it has not finished then is
        not there at the next start. Nothing is written where the file is there by now, nor where
        a model file was changed since its header was read: nobody knows what was packed.
        """
        thread = threading.Thread(target=self._keep, name="keep-weights", daemon=True)
        thread.start()
        return thread

    def _keep(self) -> None:
        if not self.model_files.are_unchanged() or not self.has_room():
            return
        model_hash = self.model_hash or self.model_files.hash()  # now, since no start waits for it
        if model_hash is not None:
            key = self._key(model_hash)
            name, size = self._name(model_hash), file_bytes(self.image.numel())
            if self.files.path(name).exists():
                return  # a server that started beside this one was first
            self.files.write(name, size, lambda file: write_image(file, key, self.image))

    def _key(self, model_hash: bytes) -> bytes:
        """Return 32 bytes that stand for everything packed weights depend on."""
        return hashlib.sha256(self.settings + model_hash).digest()

    def _name(self, model_hash: bytes) -> str:
        return f"{_digits(self.settings)}-{_digits(model_hash)}"


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """Packed weights as an earlier start left them.

    Attributes:
        weights: By name.
        mapped_bytes: Resident bytes of their file, where they are mapped; else 0.
    """

    weights: dict[str, PackedWeight]
    mapped_bytes: int


def settings_key(
    checkpoint: Checkpoint, formats: Mapping[str, LinearFormat], sources: Iterable[Path] = ()
) -> bytes:
    """Return 32 bytes for what packed weights depend on beside the bytes of the model files.

    That is the model's shape, every weight's format, the code that packs, and torch. Sizes of
    the model files and pieces from all over them are in it too: a model that never was here,
    a fine-tuned one for instance, is told so without reading its files before they are packed.

    Args:
        checkpoint: Of the model files.
        formats: Of every packed weight.
        sources: Modules that are read beside the code that packs.

    Raises:
        OSError: A model file, or the code, cannot be read.
    """
    settings = f"{torch.__version__} {checkpoint.spec} {sorted(formats.items())}"
    digest = hashlib.sha256(settings.encode())
    for source in (*_sources(), *sources):
        digest.update(source.name.encode() + source.read_bytes())
    for path, identity in checkpoint.identities.items():
        digest.update(f" {identity.num_bytes}".encode())
        for sample in _samples(path, identity.num_bytes):
            digest.update(sample)
    return digest.digest()


def _digits(key: bytes) -> str:
    return key.hex()[:_NAME_DIGITS]


def _sources() -> Iterator[Path]:
    """Yield the modules that say what the bytes of a packed weight are, and in which order."""
    for folder in (Path(__file__).parent, Path(packed_weight.__file__).parent):
        yield from sorted(folder.glob("*.py"))


def _samples(path: Path, num_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for index in range(_SAMPLES):
            file.seek(num_bytes * index // _SAMPLES)
            yield file.read(_SAMPLE_BYTES)


def _parts(weight: PackedWeight) -> list[Tensor]:
    return [one for one in (weight.data, weight.scales, weight.minimums) if one is not None]


def _image(weights: Iterable[PackedWeight]) -> Tensor:
    """Return the memory that all weights lie in, from the first one's begin, as uint8."""
    parts = [part for weight in weights for part in _parts(weight)]
    if not parts:
        return torch.empty(0, dtype=torch.uint8)
    first = min(part.data_ptr() for part in parts)
    end = max(part.data_ptr() + part.nbytes for part in parts)
    storage = parts[0].untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    return whole.narrow(0, first - storage.data_ptr(), end - first)


def _move(weight: PackedWeight, image: Tensor, memory: Tensor) -> PackedWeight:
    """Return a weight whose parts lie in `memory` where they lay in `image`."""

    def move(part: Tensor) -> Tensor:
        start = part.data_ptr() - image.data_ptr()
        return memory[start : start + part.nbytes].view(part.dtype).view(part.shape)

    return replace(
        weight,
        data=move(weight.data),
        scales=None if weight.scales is None else move(weight.scales),
        minimums=None if weight.minimums is None else move(weight.minimums),
    )
