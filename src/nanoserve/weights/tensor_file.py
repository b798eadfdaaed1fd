"""Tensors of a checkpoint's files: where each lies, and its bytes, mapped.

Knows nothing of what they mean; see `name_map` for where they go and `dequant` for values.
"""

import mmap
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nanoserve.spec.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor in a file: bytes `start` to `end`, in the format `type_name`."""

    name: str
    path: Path
    shape: tuple[int, ...]
    type_name: str
    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.end - self.start


def list_stored(checkpoint: Checkpoint) -> list[StoredTensor]:
    """Return the tensors of all files, in the order they lie."""
    if checkpoint.gguf is not None:
        path = checkpoint.gguf.path
        tensors = sorted(checkpoint.gguf.tensors.values(), key=lambda tensor: tensor.offset)
        return [
            StoredTensor(t.name, path, t.shape, t.type_name, t.offset, t.offset + t.num_bytes)
            for t in tensors
        ]
    return [
        StoredTensor(name, path, entry.shape, entry.dtype, entry.start, entry.end)
        for path, entries in checkpoint.shards.items()
        for name, entry in entries.items()
    ]


class MappedFile:
    """A file's bytes as tensors that borrow them, and the pages given back after use."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            # A private writable mapping: torch warns of read-only buffers. Nothing is written.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def read(self, start: int, end: int) -> Tensor:
        """Return bytes `start` to `end` as uint8, borrowed from the mapping."""
        return torch.frombuffer(self._map, dtype=torch.uint8, count=end - start, offset=start)

    def release(self, start: int, end: int) -> None:
        """Let the pages of a range leave memory; the last, partial one stays for its neighbour."""
        first_page = start - start % mmap.PAGESIZE
        num_bytes = end - end % mmap.PAGESIZE - first_page
        if num_bytes > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first_page, num_bytes)
