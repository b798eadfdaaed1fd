"""Packed weights on disk, so that the next start maps them instead of packing.

One file for each model and set of formats. Its key stands for everything the bytes depend on;
a file that was cut short, damaged or made for something else is deleted, and the weights are
packed again. It may be deleted at any time. Owns the key and the order of parts; the file is
`weight_file`'s, the folder `cached_files`'.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
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
from nanoserve.weights.weight_file import file_bytes, read_image, write_image

LEAST_BYTES = 8 * MIB  # of weights that are kept: fewer are packed in some 10 ms
_SAMPLES = 64  # pieces of each model file that its identity is made from
_SAMPLE_BYTES = 4096


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
        if not is_worth_it or file_bytes(image.numel()) > self.max_bytes:
            return None
        try:
            key = cache_key(checkpoint, formats, self.sources)
        except OSError:
            return None
        files = CachedFiles(self.folder, self.max_bytes)
        return CacheEntry(files, key, dict(weights), image)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One model's packed weights, there or not.

    Attributes:
        files: The folder.
        key: 32 bytes; see `cache_key`.
        weights: Without values until they are packed.
        image: Their memory, uint8.
    """

    files: CachedFiles
    key: bytes
    weights: dict[str, PackedWeight]
    image: Tensor

    @property
    def path(self) -> Path:
        """Where the file lies, whether it is there or not."""
        return self.files.path(self._name)

    @property
    def _name(self) -> str:
        return self.key.hex()[:24]

    def read(self) -> "CachedWeights | None":
        """Return the weights of an earlier start; None where there are none to be used.

        A file that cannot be used is deleted. `weights` then hold anything.
        """
        path = self.path
        try:
            stored = read_image(path, self.key, self.image)
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

    def keep(self) -> threading.Thread:
        """Begin to write the weights, which have their values now, beside whatever goes on.

        The thread does not hold up the end of the process: what it has not finished then is
        not there at the next start.
        """

        def write() -> None:
            size = file_bytes(self.image.numel())
            self.files.write(self._name, size, lambda file: write_image(file, self.key, self.image))

        thread = threading.Thread(target=write, name="keep-weights", daemon=True)
        thread.start()
        return thread


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """Packed weights as an earlier start left them.

    Attributes:
        weights: By name.
        mapped_bytes: Resident bytes of their file, where they are mapped; else 0.
    """

    weights: dict[str, PackedWeight]
    mapped_bytes: int


def cache_key(
    checkpoint: Checkpoint, formats: Mapping[str, LinearFormat], sources: Iterable[Path] = ()
) -> bytes:
    """Return 32 bytes that stand for everything packed weights depend on.

    That is the model files, every weight's format, the code that packs, and torch. A file is
    known by size, time of the last change, and pieces from all over it. Reading all of it
    would cost each start more than packing does: a fine-tuned model differs everywhere, and
    a file that is changed in place has a new time.

    Args:
        checkpoint: Of the model files.
        formats: Of every packed weight.
        sources: Modules that are read beside the code that packs.

    Raises:
        OSError: A model file, or the code, cannot be read.
    """
    digest = hashlib.sha256(f"{torch.__version__} {sorted(formats.items())}".encode())
    for source in (*_sources(), *sources):
        digest.update(source.name.encode() + source.read_bytes())
    paths = [checkpoint.gguf.path] if checkpoint.gguf is not None else sorted(checkpoint.shards)
    for path in paths:
        status = path.stat()
        digest.update(f" {path.name} {status.st_size} {status.st_mtime_ns}".encode())
        for sample in _samples(path, status.st_size):
            digest.update(sample)
    return digest.digest()


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
