"""A model file's hash is its bytes', and is computed once."""

import hashlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest

from nanoserve.spec.file_identity import FileIdentity, read_identity
from nanoserve.units import MIB
from nanoserve.weights.file_hashes import FileHashes, ModelFiles

DIGEST = bytes(range(32))


@pytest.fixture
def hashes(tmp_path: Path) -> FileHashes:
    return FileHashes(tmp_path / "hashes")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "model", b"weights")


@pytest.fixture
def identity(path: Path) -> FileIdentity:
    return read_identity(path)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def model_of(hashes: FileHashes, *paths: Path) -> ModelFiles:
    return ModelFiles({path: read_identity(path) for path in paths}, hashes)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def refuse_to_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: FileIO, algorithm: str) -> None:
        message = f"{file.name} is read"
        raise AssertionError(message)

    monkeypatch.setattr(hashlib, "file_digest", fail)


def record_of(hashes: FileHashes) -> Path:
    (record,) = hashes.folder.iterdir()
    return record


@pytest.mark.parametrize("num_threads", [0, 2])
def test_the_hash_is_that_of_all_bytes_of_all_files(
    tmp_path: Path, hashes: FileHashes, num_threads: int
) -> None:
    """SHA-256 over each file's, in their order; from memory it is the same."""
    datas = [b"one", b"two", bytes(300_000)]
    paths = [write(tmp_path / str(index), data) for index, data in enumerate(datas)]
    model = model_of(hashes, *paths)
    wanted = sha256(b"".join(sha256(data) for data in datas))
    assert model.known_hash() is None

    if num_threads:
        with ThreadPoolExecutor(num_threads) as threads:
            assert model.hash(threads) == wanted
    else:
        assert model.hash() == wanted

    assert model.known_hash() == wanted
    assert model_of(hashes, *reversed(paths)).known_hash() not in (wanted, None)


def test_a_file_is_read_once(
    path: Path, hashes: FileHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks later is told."""
    wanted = model_of(hashes, path).hash()
    refuse_to_hash(monkeypatch)

    assert model_of(hashes, path).hash() == wanted


def test_only_the_file_that_changed_is_read_again(
    tmp_path: Path, hashes: FileHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model of many files."""
    paths = [write(tmp_path / name, name.encode()) for name in ("one", "two", "three")]
    model_of(hashes, *paths).hash()
    paths[1].write_bytes(b"TWO")
    read, whole = [], hashlib.file_digest

    def count(file: FileIO, algorithm: str) -> object:
        read.append(Path(file.name).name)
        return whole(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", count)

    assert model_of(hashes, *paths).hash() is not None
    assert read == ["two"]


def changed_in_place(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"weightS")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(path: Path) -> None:
    write(path.with_suffix(".other"), b"weightS").replace(path)


@pytest.mark.parametrize("change", [changed_in_place, replaced])
def test_other_bytes_are_another_hash(
    path: Path, hashes: FileHashes, change: Callable[[Path], None]
) -> None:
    """Of the same size and, in place, of the same time."""
    first = model_of(hashes, path).hash()

    change(path)

    assert model_of(hashes, path).known_hash() is None
    assert model_of(hashes, path).hash() == sha256(sha256(b"weightS")) != first


def test_the_same_bytes_elsewhere_have_the_same_hash(path: Path, hashes: FileHashes) -> None:
    """After they were read there, too."""
    first = model_of(hashes, path).hash()
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)

    assert model_of(hashes, copy).known_hash() is None
    assert model_of(hashes, copy).hash() == first


def test_a_blob_is_not_believed_its_name(tmp_path: Path, hashes: FileHashes) -> None:
    """A hub snapshot's file leads to one that is named by the hash it had."""
    blob = write(tmp_path / sha256(b"before").hex(), b"edited")
    snapshot = tmp_path / "model.safetensors"
    snapshot.symlink_to(blob)

    assert model_of(hashes, snapshot).hash() == sha256(sha256(b"edited"))


def test_a_file_that_changes_while_it_is_read_has_no_hash(
    path: Path, hashes: FileHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one remembered."""
    model, whole = model_of(hashes, path), hashlib.file_digest

    def disturbed(file: FileIO, algorithm: str) -> object:
        digest = whole(file, algorithm)
        changed_in_place(path)
        return digest

    monkeypatch.setattr(hashlib, "file_digest", disturbed)

    assert model.hash() is None
    assert not hashes.folder.exists()


@pytest.mark.parametrize("change", [changed_in_place, replaced, Path.unlink])
def test_a_file_that_changed_before_it_is_read_has_no_hash(
    path: Path, hashes: FileHashes, change: Callable[[Path], None]
) -> None:
    """What it was when its header was read is gone."""
    model = model_of(hashes, path)
    assert model.are_unchanged()

    change(path)

    assert not model.are_unchanged()
    assert model.hash() is None


def test_what_may_change_unseen_is_not_remembered(
    path: Path, hashes: FileHashes, identity: FileIdentity
) -> None:
    """A file that was changed as its file system's clock tells is read at each start."""
    model = ModelFiles({path: replace(identity, is_settled=False)}, hashes)

    assert model.hash() == sha256(sha256(b"weights"))
    assert model.known_hash() is None
    assert not model.are_unchanged()


def shorter(record: bytes) -> bytes:
    return record[:-2]


def longer(record: bytes) -> bytes:
    return record + b"\n"


def of_another_version(record: bytes) -> bytes:
    return record.replace(b"nanoserve 1", b"nanoserve 2")


def without_digits(record: bytes) -> bytes:
    return record[:-3] + b"zz\n"


def with_a_type_of_its_own(record: bytes) -> bytes:
    return record.replace(b" 7 ", b" 7.0 ")


def emptied(record: bytes) -> bytes:
    return b""


def noise(record: bytes) -> bytes:
    return bytes(range(256)) * 4096


def nested(record: bytes) -> bytes:
    return b"[" * 100_000


GARBAGE = [
    shorter,
    longer,
    of_another_version,
    without_digits,
    with_a_type_of_its_own,
    emptied,
    noise,
    nested,
]


@pytest.mark.parametrize("spoil", GARBAGE)
def test_a_record_that_is_none_is_written_again(
    hashes: FileHashes, identity: FileIdentity, spoil: Callable[[bytes], bytes]
) -> None:
    """Nobody knows who wrote it."""
    hashes.remember(identity, DIGEST)
    assert hashes.find(identity) == DIGEST
    record = record_of(hashes)
    written = record.read_bytes()
    assert spoil(written) != written

    record.write_bytes(spoil(written))
    assert hashes.find(identity) is None

    hashes.remember(identity, DIGEST)
    assert hashes.find(identity) == DIGEST


def test_a_record_cut_anywhere_is_none(hashes: FileHashes, identity: FileIdentity) -> None:
    """As a power cut may leave it."""
    hashes.remember(identity, DIGEST)
    record = record_of(hashes)
    written = record.read_bytes()

    for num_bytes in range(len(written)):
        record.write_bytes(written[:num_bytes])
        assert hashes.find(identity) is None


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_is_no_file_is_no_record(
    path: Path, hashes: FileHashes, identity: FileIdentity, make: Callable[[Path], None]
) -> None:
    """A folder, a pipe nobody writes to, a link that leads nowhere."""
    hashes.remember(identity, DIGEST)
    record = record_of(hashes)
    record.unlink()
    make(record)

    assert hashes.find(identity) is None
    assert ModelFiles({path: identity}, hashes).hash() == sha256(sha256(b"weights"))


def test_a_folder_that_cannot_be_made_remembers_nothing(path: Path, tmp_path: Path) -> None:
    """The hash is the same."""
    model = model_of(FileHashes(write(tmp_path / "file", b"") / "hashes"), path)

    assert model.hash() == sha256(sha256(b"weights"))
    assert model.known_hash() is None


def test_records_that_may_only_be_read_are_believed(
    hashes: FileHashes, identity: FileIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That their time cannot be set is no reason to read the model."""
    hashes.remember(identity, DIGEST)

    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "utime", refuse)

    assert hashes.find(identity) == DIGEST


def test_records_are_bounded(hashes: FileHashes, identity: FileIdentity) -> None:
    """What was not asked for longest goes; what is used stays."""
    hashes.remember(identity, DIGEST)
    record_bytes = record_of(hashes).stat().st_size
    three = FileHashes(hashes.folder, 3 * record_bytes + 2)
    others = [replace(identity, inode=identity.inode ^ value) for value in (1, 2, 3)]
    three.remember(others[0], DIGEST)
    three.remember(others[1], DIGEST)
    for record in hashes.folder.iterdir():
        os.utime(record, (1, 1))
    assert three.find(identity) == DIGEST
    assert three.find(others[1]) == DIGEST

    three.remember(others[2], DIGEST)

    known = [three.find(one) is not None for one in (identity, *others)]
    assert known == [True, False, True, True]


def test_writers_at_once_lose_nothing(tmp_path: Path, hashes: FileHashes) -> None:
    """Servers that start together, of the same and of other models."""
    paths = [write(tmp_path / f"model{index}", bytes([index])) for index in range(8)]
    models = [model_of(hashes, path) for path in paths]

    with ThreadPoolExecutor(8) as servers:
        found = list(servers.map(ModelFiles.hash, models * 5))

    assert found == [model.known_hash() for model in models] * 5
    assert None not in found
    assert len(list(hashes.folder.iterdir())) == len(paths)


def test_a_hash_is_remembered_on_a_disk_that_is_nearly_full(
    hashes: FileHashes, identity: FileIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record takes little; without it every start would read the whole model."""
    monkeypatch.setattr("nanoserve.weights.cached_files._free_bytes", lambda folder: MIB)
    hashes.remember(identity, DIGEST)

    assert hashes.find(identity) == DIGEST
