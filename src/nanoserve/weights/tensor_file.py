"""Tensors of a checkpoint's files: where each lies, and its bytes, mapped.

Owns that the bytes are of the files whose headers were read. Knows nothing of what they mean;
see `name_map` for where they go and `dequant` for values.
"""

import contextlib
import mmap
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nanoserve.error_reasons import reason_of
from nanoserve.errors import ModelError
from nanoserve.spec.checkpoint import Checkpoint
from nanoserve.spec.file_identity import FileIdentity, identity_of


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


def check_unchanged(checkpoint: Checkpoint) -> None:
    """Refuse weights that were read while something wrote to their files.

    A file that is gone or was replaced is none of these: what was mapped of it stays.

    Raises:
        ModelError: Names the file.
    """
    for path, known in checkpoint.identities.items():
        with contextlib.suppress(OSError), path.open("rb") as file:
            now = identity_of(file)
            if (now.device, now.inode) == (known.device, known.inode):
                _check_same(path, known, now)


def _check_same(path: Path, known: FileIdentity, now: FileIdentity) -> None:
    """Compare files; a link, or other rights, change `ctime_ns` and no byte."""
    facts = [(one.device, one.inode, one.num_bytes, one.mtime_ns) for one in (known, now)]
    if facts[0] != facts[1]:
        message = (
            f"{path} was changed while it was read: it had {known.num_bytes:,} bytes when its "
            f"header was, and has {now.num_bytes:,}, not all of them the same. Start again once "
            "nothing writes to it."
        )
        raise ModelError(message)


class MappedFile:
    """A file's bytes as tensors that borrow them, and the pages given back after use."""

    def __init__(self, path: Path, known: FileIdentity | None = None) -> None:
        """Map it.

        Args:
            path: Of the file.
            known: What it was when its header was read; None where nobody looked.

        Raises:
            ModelError: It was changed since then, or is gone.
        """
        try:
            file = path.open("rb")
        except OSError as error:
            message = (
                f"{path} cannot be read any more: {reason_of(error)}. Start again once it is there."
            )
            raise ModelError(message) from error
        with file:
            if known is not None:
                _check_same(path, known, identity_of(file))
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
