"""A folder of files that may be deleted at any time, kept under a bound.

Owns how a file comes there whole or not at all, and which go when room is needed. Knows
nothing of what is in them; imports no torch. Nothing that happens to the folder is an error.
"""

import atexit
import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from nanoserve.units import GIB

SUFFIX = ".weights"
SPARED_BYTES = GIB
_PART = ".part"  # of a file that is being written; its writer holds a lock on it
_STAT_BLOCK_BYTES = 512  # of `st_blocks`, whatever the file system's own blocks are


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """The files of a folder.

    Attributes:
        folder: Need not exist.
        max_bytes: Most bytes of all files together.
        suffix: Of their names; others in the folder are left alone.
        spared_bytes: Of the disk, that are left to others.
    """

    folder: Path
    max_bytes: int
    suffix: str = SUFFIX
    spared_bytes: int = SPARED_BYTES

    def path(self, name: str) -> Path:
        """Return where the file of that name lies, whether it is there or not."""
        return self.folder / f"{name}{self.suffix}"

    def has_any(self, prefix: str) -> bool:
        """Whether there is a file whose name begins so."""
        return any(path.name.startswith(prefix) for path, _ in self._files())

    def used(self) -> tuple[int, int]:
        """Return how many files there are, and their bytes."""
        sizes = [status.st_size for _, status in self._files()]
        return len(sizes), sum(sizes)

    def has_room(self, num_bytes: int, name: str = "") -> bool:
        """Whether a file could be written now, after what would have to go for it.

        Nothing goes, and no folder is made. What another process has mapped counts as room,
        though the disk has its space only once that process ends: writing finds out.

        Args:
            num_bytes: That it will have.
            name: Of the file, if it is known yet: it does not go, but is replaced.
        """
        if num_bytes > self.max_bytes:
            return False
        try:
            place = _nearest_there(self.folder)
            would_go = [status for _, status in self._outlived(num_bytes, name)]
            parts = [status for part in self._parts() if (status := _look_at_part(part))]
            freed_bytes = sum(one.st_blocks for one in would_go + parts) * _STAT_BLOCK_BYTES
            has_space = num_bytes + self.spared_bytes <= _free_bytes(place) + freed_bytes
        except OSError:
            return False
        return has_space and place.is_dir() and os.access(place, os.W_OK | os.X_OK)

    def make_room(self, num_bytes: int, name: str = "") -> bool:
        """Let what was not used for longest go, and say whether a file can be written now.

        Nothing goes where that would not make room.

        Args:
            num_bytes: That it will have.
            name: Of the file, as for `has_room`.
        """
        if not self.has_room(num_bytes, name):
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for part in self._parts():
                _look_at_part(part, is_deleted=True)
            for path, _ in self._outlived(num_bytes, name):
                path.unlink(missing_ok=True)
            return num_bytes + self.spared_bytes <= _free_bytes(self.folder)
        except OSError:
            return False

    def write(self, name: str, num_bytes: int, fill: Callable[[BinaryIO], object]) -> bool:
        """Write a file, whole or not at all, after what was not used for longest has gone.

        A writer that is killed leaves a part, which the next writer deletes; one that writes
        the same file at the same time writes a part of its own.

        Args:
            name: Of the file.
            num_bytes: That it will have.
            fill: Writes them to an empty file.

        Returns:
            Whether it was written: not beyond the bound, to a disk that is full, or to a
            folder that may not be written.
        """
        if not self.make_room(num_bytes, name):
            return False
        try:
            self._write(name, fill)
        except OSError:
            return False
        return True

    def _write(self, name: str, fill: Callable[[BinaryIO], object]) -> None:
        with _new_part(self.folder) as (file, part):
            fill(file)
            file.flush()
            os.fsync(file)  # or a power cut leaves the name with nothing behind it
            part.replace(self.path(name))

    def _outlived(self, num_bytes: int, name: str) -> list[tuple[Path, os.stat_result]]:
        """Return what goes for a file of that name: what was not used for longest."""
        others = [one for one in self._files() if one[0] != self.path(name)]
        others.sort(key=lambda one: one[1].st_mtime_ns)
        excess_bytes = sum(status.st_size for _, status in others) + num_bytes - self.max_bytes
        outlived = []
        for path, status in others:
            if excess_bytes <= 0:
                break
            outlived.append((path, status))
            excess_bytes -= status.st_size
        return outlived

    def _parts(self) -> list[Path]:
        return list(self.folder.glob(f"*{_PART}"))

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self.folder.glob(f"*{self.suffix}"):
            with contextlib.suppress(OSError):  # another process deletes, too
                found.append((path, path.stat()))
        return found


@contextlib.contextmanager
def _new_part(folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Open and lock an empty part that is there still; it is gone after an error or the end."""
    while True:
        descriptor, name = tempfile.mkstemp(dir=folder, suffix=_PART)
        delete = partial(Path(name).unlink, missing_ok=True)
        atexit.register(delete)  # a thread that writes is cut off where the process ends
        try:
            with os.fdopen(descriptor, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # waits while another looks whether it is held
                if os.fstat(descriptor).st_nlink:
                    yield file, Path(name)
                    return
        except BaseException:
            delete()
            raise
        finally:
            atexit.unregister(delete)
        # Another deleted it as abandoned: it came before the lock.


def _look_at_part(part: Path, *, is_deleted: bool = False) -> os.stat_result | None:
    """Return the status of what a writer left that is no more; a lock ends with its process.

    Args:
        part: Of any writer.
        is_deleted: Whether it is deleted then.

    Returns:
        None where its writer is at work, or it has gone.
    """
    with contextlib.suppress(OSError), part.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_deleted:
            part.unlink(missing_ok=True)
        return os.fstat(file.fileno())
    return None


def _nearest_there(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there: where it would be made."""
    while not folder.exists():
        folder = folder.parent
    return folder


def _free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
