"""Packed weights on disk, so that the next start reads them as they lie in memory.

One file for each model and format, below the cache folder: a header, then the bytes of every
weight in turn. A file that was cut short, damaged or made for something else is deleted, and
the weights are packed again. The folder is kept under a bound: what was not used for longest
goes first. It may be deleted at any time.
"""

import contextlib
import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from nanoserve.kernels.packed_weight import PackedWeight
from nanoserve.plan.weight_plan import LinearFormat
from nanoserve.spec.checkpoint import Checkpoint
from nanoserve.units import GIB

# Raise it when the layout of panels, the quantiser, `launch.input_importance` or this file
# changes: older files are then never read.
VERSION = 2
MAX_CACHE_BYTES = 8 * GIB
_MAGIC = b"nanosrvw"
_HEADER = struct.Struct("<8sqq")  # magic, bytes of the weights, their checksum
_ABANDONED_S = 3600.0  # a part that nobody has written to for so long has lost its writer
_SAMPLES = 64  # pieces of each model file that its identity is made from
_SAMPLE_BYTES = 4096


def cache_path(folder: Path, checkpoint: Checkpoint, packed: Mapping[str, LinearFormat]) -> Path:
    """Return where a model's packed weights lie, whether they are there or not.

    The name stands for the model files (size, time of the last change, and pieces from all
    over each), for every weight's format and for `VERSION`.

    Raises:
        OSError: A model file cannot be read.
    """
    digest = hashlib.sha256(f"{VERSION} {sorted(packed.items())}".encode())
    paths = [checkpoint.gguf.path] if checkpoint.gguf is not None else sorted(checkpoint.shards)
    for path in paths:
        status = path.stat()
        digest.update(f" {path.name} {status.st_size} {status.st_mtime_ns}".encode())
        for sample in _samples(path, status.st_size):
            digest.update(sample)
    return folder / f"{digest.hexdigest()[:24]}.weights"


def read_weights(path: Path, weights: Iterable[PackedWeight]) -> bool:
    """Fill packed weights from a file; False where that cannot be done, whatever the reason.

    What cannot be used is deleted; the weights then hold anything.
    """
    parts = _parts(weights)
    num_bytes = sum(part.numel() for part in parts)
    try:
        with path.open("rb", buffering=0) as file:
            is_whole = os.fstat(file.fileno()).st_size == _HEADER.size + num_bytes
            magic, stored_bytes, checksum = _HEADER.unpack(
                file.read(_HEADER.size).ljust(_HEADER.size)
            )
            is_whole &= (magic, stored_bytes) == (_MAGIC, num_bytes)
            is_whole = is_whole and all(_read_part(file.fileno(), part) for part in parts)
            if is_whole and _checksum(parts) == checksum:
                with contextlib.suppress(OSError):  # a cache that may only be read is one, too
                    os.utime(path)  # used now
                return True
        path.unlink()
    except OSError:
        return False
    return False


def write_weights(path: Path, weights: Iterable[PackedWeight]) -> None:
    """Write packed weights, whole or not at all, and keep the folder under its bound.

    A disk that is full or may not be written is no error: the next start packs again.
    """
    parts = _parts(weights)
    num_bytes = sum(part.numel() for part in parts)
    if num_bytes > MAX_CACHE_BYTES:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent, num_bytes)
        descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_HEADER.pack(_MAGIC, num_bytes, _checksum(parts)))
                for part in parts:
                    file.write(part.numpy().data)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _samples(path: Path, num_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for index in range(_SAMPLES):
            file.seek(num_bytes * index // _SAMPLES)
            yield file.read(_SAMPLE_BYTES)


def _parts(weights: Iterable[PackedWeight]) -> list[Tensor]:
    """Return every tensor of the weights as uint8."""
    return [
        part.view(torch.uint8).view(-1)
        for weight in weights
        for part in (weight.data, weight.scales, weight.minimums)
        if part is not None
    ]


def _read_part(descriptor: int, part: Tensor) -> bool:
    buffer, done = part.numpy().data, 0
    while done < len(buffer):
        num_read = os.readv(descriptor, [buffer[done:]])
        if not num_read:
            return False
        done += num_read
    return True


def _checksum(parts: list[Tensor]) -> int:
    """Return a sum of the words of all parts, modulo 2**64; a part is whole panels."""
    sums = (int(part.view(torch.int64).sum()) * (2 * index + 1) for index, part in enumerate(parts))
    return (sum(sums) + 2**63) % 2**64 - 2**63


def _make_room(folder: Path, num_bytes: int) -> None:
    """Delete what was not used for longest until so many bytes may be added.

    And what was being written when its writer was killed.
    """
    for part in folder.glob("*.part"):
        if part.stat().st_mtime < time.time() - _ABANDONED_S:
            part.unlink(missing_ok=True)
    files = [(path, path.stat()) for path in folder.glob("*.weights")]
    total_bytes = sum(status.st_size for _, status in files)
    for path, status in sorted(files, key=lambda one: one[1].st_mtime_ns):
        if total_bytes + num_bytes <= MAX_CACHE_BYTES:
            return
        path.unlink(missing_ok=True)
        total_bytes -= status.st_size
