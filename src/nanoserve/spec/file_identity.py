"""Which file a path names, and whether it is still as it was.

Asked is what git's index asks, and the device.
A file whose device, inode, size, time of last change and time of last change of its state are
the same has the same bytes, if a change after the first look would have shown. That is what
`FileIdentity.is_settled` says.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

_SECOND_NS = 1_000_000_000
_FINE_NS = 20_000_000  # two ticks of the slowest Linux clock that stamps files, 100 Hz
_COARSE_NS = 2 * _SECOND_NS  # FAT's, the coarsest there is


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file as it was when it was looked at. Times in ns since 1970.

    Attributes:
        device: That it lies on.
        inode: Its number there.
        num_bytes: Its size.
        mtime_ns: When its bytes were changed last; anybody may set it.
        ctime_ns: When bytes, times or name were changed last; the clock alone sets it.
        is_settled: Whether any change after the look has another `ctime_ns`: the last one
            was longer ago than the file system's clock is coarse. (Git calls an entry that
            is not so "racily clean", and reads the file.) No part of the identity.
    """

    device: int
    inode: int
    num_bytes: int
    mtime_ns: int
    ctime_ns: int
    is_settled: bool = field(compare=False)


def read_identity(path: Path) -> FileIdentity:
    """Return the identity of a file, after up to 20 ms if it was changed just now.

    Raises:
        OSError: It cannot be opened.
    """
    with path.open("rb") as file:  # a network file system asks its server on opening
        age_ns = time.time_ns() - os.fstat(file.fileno()).st_ctime_ns
        if 0 <= age_ns <= _FINE_NS:
            time.sleep((_FINE_NS - age_ns + 1) / _SECOND_NS)
        return identity_of(file)


def identity_of(file: BinaryIO) -> FileIdentity:
    """Return the identity of an open file."""
    now_ns = time.time_ns()  # first: what changes after the look is later still
    status = os.fstat(file.fileno())
    tick_ns = _FINE_NS if status.st_ctime_ns % _SECOND_NS else _COARSE_NS
    return FileIdentity(
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        is_settled=now_ns - status.st_ctime_ns > tick_ns,
    )
