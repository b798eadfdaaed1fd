"""SHA-256 of model files, and a folder that remembers them by the files' identities.

A file is read once, not at each start: its hash is believed as long as device, inode, size
and both times are what they were: what git's index asks, and the device. A file that was
copied, touched or replaced is read again. The name of a hub snapshot's blob is its SHA-256, too, and is not
believed: a blob that was edited in place, or by a broken disk, keeps its name.

What lies in the folder is never trusted to be whole, and nothing that happens to it is an
error. Imports no torch.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nanoserve.spec.file_identity import FileIdentity, identity_of
from nanoserve.units import KIB
from nanoserve.weights.cached_files import CachedFiles

ALGORITHM = "sha256"
MAX_BYTES = 256 * KIB  # of all records: more than a thousand files
_VERSION = "nanoserve 1"
_MAX_RECORD_BYTES = 512
_HEX_DIGEST = re.compile(rb"[0-9a-f]{64}\n")


@dataclass(frozen=True, slots=True)
class FileHashes:
    """The hashes that were computed on this machine, a file for each model file.

    Records that were not used for longest go when there are too many.

    Attributes:
        folder: Need not exist.
        max_bytes: Most bytes of all records.
    """

    folder: Path
    max_bytes: int = MAX_BYTES

    def find(self, identity: FileIdentity) -> bytes | None:
        """Return a file's hash, 32 bytes; None where it is not known as it is now."""
        path = self._files.path(_name(identity))
        try:
            if not path.is_file():
                return None
            with path.open("rb") as file:
                record = file.read(_MAX_RECORD_BYTES)
        except OSError:
            return None
        described = _describe(identity)
        digest = record.removeprefix(described)
        if not record.startswith(described) or not _HEX_DIGEST.fullmatch(digest):
            return None
        with contextlib.suppress(OSError):  # records that may only be read are some, too
            os.utime(path)  # used now
        return bytes.fromhex(digest.decode())

    def remember(self, identity: FileIdentity, digest: bytes) -> None:
        """Keep a file's hash, unless a change of the file could go without notice."""
        if identity.is_settled:
            record = _describe(identity) + f"{digest.hex()}\n".encode()
            self._files.write(_name(identity), len(record), lambda file: file.write(record))

    @property
    def _files(self) -> CachedFiles:
        return CachedFiles(self.folder, self.max_bytes, f".{ALGORITHM}", spared_bytes=0)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The weight files of a model, as they were when their headers were read.

    Attributes:
        identities: In the order of the files.
        hashes: Of files that were read before.
    """

    identities: Mapping[Path, FileIdentity]
    hashes: FileHashes

    def known_hash(self) -> bytes | None:
        """Return 32 bytes that stand for all bytes of all files; None where one is not known."""
        return _combine(self.hashes.find(identity) for identity in self.identities.values())

    def hash(self, threads: ThreadPoolExecutor | None = None) -> bytes | None:
        """Return `known_hash` after reading what is not known; None if a file has changed.

        Args:
            threads: Read files side by side; None reads one after the other.
        """
        each = map if threads is None else threads.map
        return _combine(each(self._hash_one, self.identities.keys(), self.identities.values()))

    def are_unchanged(self) -> bool:
        """Whether what was read of them since then was one and the same."""
        return all(
            identity.is_settled and _identity_at(path) == identity
            for path, identity in self.identities.items()
        )

    def _hash_one(self, path: Path, identity: FileIdentity) -> bytes | None:
        digest = self.hashes.find(identity)
        if digest is not None:
            return digest
        try:
            with path.open("rb") as file:
                was_same = identity_of(file) == identity
                digest = hashlib.file_digest(file, ALGORITHM).digest() if was_same else None
                if digest is None or identity_of(file) != identity:
                    return None
        except OSError:
            return None
        self.hashes.remember(identity, digest)
        return digest


def _combine(digests: Iterable[bytes | None]) -> bytes | None:
    """Return one hash for several in their order; None where one is missing."""
    combined = hashlib.new(ALGORITHM)
    for digest in digests:
        if digest is None:
            return None
        combined.update(digest)
    return combined.digest()


def _identity_at(path: Path) -> FileIdentity | None:
    try:
        with path.open("rb") as file:
            return identity_of(file)
    except OSError:
        return None


def _name(identity: FileIdentity) -> str:
    return f"{identity.device:x}-{identity.inode:x}"


def _describe(identity: FileIdentity) -> bytes:
    size, mtime, ctime = identity.num_bytes, identity.mtime_ns, identity.ctime_ns
    text = f"{_VERSION} {identity.device} {identity.inode} {size} {mtime} {ctime} {ALGORITHM} "
    return text.encode()
