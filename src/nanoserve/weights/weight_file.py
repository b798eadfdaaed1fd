"""A file that holds packed weights as they lie in memory: written, checked and mapped.

```
0         4 KiB                   4 KiB + image        a multiple of 2 MiB
| header  | image of the weights  | zeros              |
```

Owns the file's format and whether it is mapped or read. Knows nothing of models or folders
(see `weight_cache`).
"""

import contextlib
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from nanoserve.kernels.panel_layout import HUGE_PAGE_BYTES
from nanoserve.units import KIB, round_up

HEADER_BYTES = 4096
_HEADER = struct.Struct("<8s32sqQ")  # magic, key, bytes of the image, its checksum
_CRC = struct.Struct("<I")  # of the header
_MAGIC = b"nanosrvw"
_BLOCK_WORDS = HUGE_PAGE_BYTES // 8
_CHECK_THREADS = 2  # one core does not read as fast as memory gives
_POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14; `mmap` has no name for it
_LEAST_HUGE = 0.9  # of a mapping, in huge pages, for which it is not read instead
_THP_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, slots=True)
class StoredImage:
    """The memory of packed weights, as an earlier start left it.

    Attributes:
        memory: uint8.
        mapped_bytes: Resident pages of the file that it consists of; 0 where it was read.
    """

    memory: Tensor
    mapped_bytes: int


def file_bytes(num_bytes: int) -> int:
    """Return the size of a file for an image of so many bytes: whole huge pages."""
    return round_up(HEADER_BYTES + num_bytes, HUGE_PAGE_BYTES)


def write_image(file: BinaryIO, key: bytes, image: Tensor) -> None:
    """Write an image to an empty file.

    In pieces that are huge pages of the file: that is how they then lie in the page cache.

    Args:
        file: Open for writing.
        key: 32 bytes that say what the image is.
        image: uint8, a multiple of 8 bytes.

    Raises:
        OSError: The disk is full, or will not be written.
    """
    data = image.numpy().data
    first = HUGE_PAGE_BYTES - HEADER_BYTES
    file.write(bytes(HEADER_BYTES) + bytes(data[:first]))
    for start in range(first, len(data), HUGE_PAGE_BYTES):
        file.write(data[start : start + HUGE_PAGE_BYTES])
    file.truncate(file_bytes(len(data)))
    file.seek(0)  # last: what has no header is no file of weights
    header = _HEADER.pack(_MAGIC, key, len(data), sum(_block_sums(image)) % 2**64)
    file.write(header + _CRC.pack(zlib.crc32(header)))


def read_image(path: Path, key: bytes, into: Tensor) -> StoredImage | None:
    """Return an image from a file: mapped, or read where mapping would make steps slower.

    All of it is summed, which takes about as long as a decode step, since that reads the
    same bytes; the pages are there afterwards.

    Args:
        path: Of the file.
        key: What it must hold.
        into: uint8 of the image's size; filled where the file is read.

    Returns:
        None if the file holds something else, or is cut short or damaged.

    Raises:
        OSError: It is not there, or cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        checksum = _checksum_in(file, key, into.numel())
        if checksum is None:
            return None
        image = _map_image(file, into.numel())
        if image is None:
            _read_fully(file, into)
            image = StoredImage(into, 0)
    with ThreadPoolExecutor(_CHECK_THREADS) as threads:
        found = sum(_block_sums(image.memory, threads)) % 2**64
    return image if found == checksum else None


def parse_mapping(smaps: str, address: int) -> dict[str, int]:
    """Return the sizes of one mapping in /proc/self/smaps, in bytes, by their names there.

    Args:
        smaps: Text of the file.
        address: Where the mapping begins; if none does, there are no sizes.
    """
    _, _, found = f"\n{smaps}".partition(f"\n{address:08x}-")
    sizes = {}
    for line in found.splitlines()[1:]:
        name, colon, value = line.partition(":")
        if not colon or not value.endswith(" kB"):
            break  # flags, or the next mapping
        sizes[name] = int(value.split()[0]) * KIB
    return sizes


def _checksum_in(file: BinaryIO, key: bytes, num_bytes: int) -> int | None:
    """Return what the header says the image's sum is; None where it is not the one wanted."""
    header = file.read(_HEADER.size + _CRC.size).ljust(_HEADER.size + _CRC.size)
    magic, stored_key, stored_bytes, checksum = _HEADER.unpack_from(header)
    is_wanted = (
        (magic, stored_key, stored_bytes) == (_MAGIC, key, num_bytes)
        and _CRC.unpack_from(header, _HEADER.size) == (zlib.crc32(header[: _HEADER.size]),)
        and os.fstat(file.fileno()).st_size == file_bytes(num_bytes)
    )
    return int(checksum) if is_wanted else None


def _map_image(file: BinaryIO, num_bytes: int) -> StoredImage | None:
    """Map an image; None where its pages are small and huge ones can be had by reading.

    Measured: Zen 4, 2 threads, 270 MiB summed: 7.9 ms in anonymous huge pages, 8.0 ms in huge
    pages of a file, 8.2 ms where these are 81 % of it, 9.6 ms in pages of 4 KiB.
    """
    # Private and writable, since torch warns of read-only buffers. Nothing is written.
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    try:
        pages.madvise(_POPULATE_READ)  # here a bad disk is an error; later it would be SIGBUS
    except OSError:  # that, or a kernel without it
        return None
    # It names every mapped file, and a name on disk need not be UTF-8.
    smaps = Path("/proc/self/smaps").read_text(errors="replace")
    sizes = parse_mapping(smaps, memory.data_ptr())
    resident_bytes = sizes.get("Rss", 0)
    has_huge_pages = sizes.get("FilePmdMapped", 0) >= _LEAST_HUGE * len(pages)
    if not has_huge_pages and _offers_huge_pages():
        return None
    return StoredImage(memory[HEADER_BYTES : HEADER_BYTES + num_bytes], resident_bytes)


def _offers_huge_pages() -> bool:
    """Whether the system gives anonymous memory huge pages when asked."""
    try:
        return "[never]" not in _THP_SETTING.read_text()
    except OSError:
        return False


def _read_fully(file: BinaryIO, into: Tensor) -> None:
    buffer, done = into.numpy().data, 0
    while done < len(buffer):
        num_read = os.preadv(file.fileno(), [buffer[done:]], HEADER_BYTES + done)
        if not num_read:
            message = f"{file.name} ends after {done:,} of {len(buffer):,} bytes of weights"
            raise OSError(message)
        done += num_read


def _block_sums(image: Tensor, threads: ThreadPoolExecutor | None = None) -> Iterator[int]:
    """Yield the sum of each block's words, times an odd number of its own."""
    words = image.numpy().view(np.int64)

    def block_sum(index: int) -> int:
        block = words[index * _BLOCK_WORDS : (index + 1) * _BLOCK_WORDS]
        return int(block.sum()) * (2 * index + 1)

    indices = range(-(-len(words) // _BLOCK_WORDS))
    return iter((map if threads is None else threads.map)(block_sum, indices))
