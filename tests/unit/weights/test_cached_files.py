"""A cache folder's files are whole, bounded, and nobody's error."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from nanoserve.units import MIB
from nanoserve.weights.cached_files import SPARED_BYTES, CachedFiles

KILLED = """
import os, sys
from pathlib import Path
from nanoserve.weights.cached_files import CachedFiles

def fill(file):
    file.write(b"half")
    file.flush()
    os._exit(9)

CachedFiles(Path(sys.argv[1]), 100).write("one", 8, fill)
"""


def filler(data: bytes) -> Callable[[BinaryIO], None]:
    def fill(file: BinaryIO) -> None:
        file.write(data)

    return fill


@pytest.fixture(autouse=True)
def disk_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file stay unwritten for the sake of how full this machine's disk is."""
    monkeypatch.setattr("nanoserve.weights.cached_files._free_bytes", lambda folder: 2**50)


@pytest.fixture
def files(tmp_path: Path) -> CachedFiles:
    return CachedFiles(tmp_path / "cache", 100)


def test_what_is_written_is_there_whole(files: CachedFiles) -> None:
    """Under its name, alone in the folder, and counted."""
    assert files.write("one", 4, filler(b"data"))

    assert files.path("one").read_bytes() == b"data"
    assert list(files.folder.iterdir()) == [files.path("one")]
    assert files.used() == (1, 4)


def test_a_folder_that_is_not_there_has_no_files(files: CachedFiles) -> None:
    """Asking makes none."""
    assert files.used() == (0, 0)
    assert not files.folder.exists()


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_full_disk_leaves_nothing_behind(files: CachedFiles, fault: int) -> None:
    """And what was there stays."""
    files.write("one", 4, filler(b"data"))

    def fill(file: BinaryIO) -> None:
        file.write(b"ha")
        raise OSError(fault, os.strerror(fault))

    assert not files.write("one", 4, fill)
    assert not files.write("two", 4, fill)

    assert list(files.folder.iterdir()) == [files.path("one")]
    assert files.path("one").read_bytes() == b"data"


def test_another_error_leaves_nothing_behind(files: CachedFiles) -> None:
    """It is raised, since it is a mistake."""

    def fill(file: BinaryIO) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        files.write("one", 4, fill)
    assert list(files.folder.iterdir()) == []


@pytest.mark.parametrize(("free_bytes", "is_written"), [(4, True), (3, False)])
def test_some_of_the_disk_is_left_to_others(
    files: CachedFiles, monkeypatch: pytest.MonkeyPatch, free_bytes: int, is_written: bool
) -> None:
    """A file that would fill the disk is not begun."""
    monkeypatch.setattr(
        "nanoserve.weights.cached_files._free_bytes", lambda folder: SPARED_BYTES + free_bytes
    )

    assert files.write("one", 4, filler(b"data")) == is_written
    assert files.used()[0] == is_written


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    """Nothing is written, and nothing is there."""
    (tmp_path / "file").write_text("")
    files = CachedFiles(tmp_path / "file" / "cache", 100)

    assert not files.write("one", 4, filler(b"data"))
    assert files.used() == (0, 0)


def test_a_folder_that_may_only_be_read_is_no_error(
    files: CachedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user's is."""
    files.write("one", 4, filler(b"data"))

    def refuse(**keywords: object) -> tuple[int, str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.mkstemp", refuse)

    assert not files.write("two", 4, filler(b"data"))
    assert files.used() == (1, 4)


def test_what_was_not_used_for_longest_goes_first(files: CachedFiles) -> None:
    """As many as make room, the bound is kept, and the newest use stays."""
    for name, used_at in (("first", 3), ("second", 1), ("third", 2)):
        files.write(name, 30, filler(bytes(30)))
        os.utime(files.path(name), (used_at, used_at))

    assert files.write("fourth", 60, filler(bytes(60)))

    left = sorted(path.stem for path in files.folder.iterdir())
    assert left == ["first", "fourth"]


def test_what_is_larger_than_the_bound_is_not_written(files: CachedFiles) -> None:
    """Nothing goes for it either."""
    files.write("one", 4, filler(b"data"))

    assert not files.write("two", 101, filler(bytes(101)))
    assert files.used() == (1, 4)


def test_asking_for_room_deletes_nothing(files: CachedFiles) -> None:
    """The answer is that of a write, for which the older ones would go."""
    for name in ("first", "second", "third"):
        files.write(name, 30, filler(bytes(30)))

    assert [files.has_room(num_bytes) for num_bytes in (1, 60, 100, 101)] == [True] * 3 + [False]
    assert files.used() == (3, 90)


def test_asking_for_room_makes_no_folder(tmp_path: Path) -> None:
    """It looks at where the folder would be made: there is no room below a file."""
    (tmp_path / "file").write_text("")

    assert CachedFiles(tmp_path / "a" / "cache", 100).has_room(4)
    assert not CachedFiles(tmp_path / "file" / "cache", 100).has_room(4)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_there_is_no_room_where_nobody_may_write(
    files: CachedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of the folder, or of what is there of the way to it."""
    asked: list[Path] = []

    def refuse(path: Path, mode: int) -> bool:
        asked.append(path)
        return not mode & os.W_OK

    monkeypatch.setattr(os, "access", refuse)

    assert not files.has_room(4)
    assert asked == [files.folder.parent]


def disk_of(files: CachedFiles, num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the folder is on a disk of so many bytes, beside the spared ones."""

    def free_bytes(folder: Path) -> int:
        used = sum(path.stat().st_size for path in files.folder.glob("*"))
        return files.spared_bytes + num_bytes - used

    monkeypatch.setattr("nanoserve.weights.cached_files._free_bytes", free_bytes)


def test_what_would_go_is_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk has room for a file that older ones make way for."""
    files = CachedFiles(tmp_path, 3 * MIB)
    disk_of(files, 2 * MIB, monkeypatch)
    assert files.write("one", 2 * MIB, filler(bytes(2 * MIB)))

    assert files.has_room(2 * MIB)
    assert not files.has_room(2 * MIB + 1)
    assert files.used() == (1, 2 * MIB)
    assert files.write("two", 2 * MIB, filler(bytes(2 * MIB)))
    assert list(tmp_path.iterdir()) == [files.path("two")]


def test_what_a_killed_writer_left_is_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing deletes it, and asking does not."""
    files = CachedFiles(tmp_path, 4 * MIB)
    disk_of(files, 2 * MIB, monkeypatch)
    part = tmp_path / "killed.part"
    part.write_bytes(bytes(2 * MIB))

    assert files.has_room(2 * MIB)
    assert part.exists()
    assert files.write("one", 2 * MIB, filler(bytes(2 * MIB)))
    assert not part.exists()


def test_nothing_goes_where_there_is_no_room_even_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there already is worth more than nothing."""
    files = CachedFiles(tmp_path, 3 * MIB)
    files.write("one", 2 * MIB, filler(bytes(2 * MIB)))
    disk_of(files, MIB, monkeypatch)

    assert not files.write("two", 2 * MIB, filler(bytes(2 * MIB)))
    assert list(tmp_path.iterdir()) == [files.path("one")]


def test_a_disk_that_others_fill_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting a file that a process has mapped frees nothing: there is no room after all."""
    files = CachedFiles(tmp_path, 3 * MIB)
    files.write("one", 2 * MIB, filler(bytes(2 * MIB)))
    monkeypatch.setattr("nanoserve.weights.cached_files._free_bytes", lambda folder: SPARED_BYTES)

    assert files.has_room(2 * MIB)
    assert not files.write("two", 2 * MIB, filler(bytes(2 * MIB)))
    assert not files.path("two").exists()


def test_a_file_that_is_replaced_drives_out_no_other(files: CachedFiles) -> None:
    """Servers that start together write the same file; it is counted once."""
    for name, num_bytes in (("other", 40), ("one", 60)):
        files.write(name, num_bytes, filler(bytes(num_bytes)))

    assert files.write("one", 60, filler(bytes(60)))

    assert files.used() == (2, 100)


def test_what_a_killed_writer_left_is_deleted(files: CachedFiles) -> None:
    """By the next who writes."""
    killed = subprocess.run([sys.executable, "-c", KILLED, str(files.folder)], check=False)
    assert killed.returncode == 9
    (part,) = files.folder.iterdir()

    files.write("two", 4, filler(b"data"))

    assert not part.exists()
    assert not files.path("one").exists()


def test_what_another_writes_now_stays(files: CachedFiles) -> None:
    """A writer that begins while one is at work does not take its part away."""

    def fill(file: BinaryIO) -> None:
        file.write(b"outer")
        assert files.write("inner", 5, filler(b"inner"))

    assert files.write("outer", 5, fill)

    assert [files.path(name).read_bytes() for name in ("outer", "inner")] == [b"outer", b"inner"]


def test_a_part_that_is_not_locked_yet_may_be_taken_away(
    files: CachedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another, who takes it for what a killed writer left: the writer begins anew."""
    make = tempfile.mkstemp
    taken: list[str] = []

    def make_and_lose(*, dir: Path, suffix: str) -> tuple[int, str]:
        descriptor, part = make(dir=dir, suffix=suffix)
        if len(taken) < 2:
            taken.append(part)
            files.make_room(4)
            assert not Path(part).exists()
        return descriptor, part

    monkeypatch.setattr(tempfile, "mkstemp", make_and_lose)

    assert files.write("one", 4, filler(b"data"))

    assert len(taken) == 2
    assert list(files.folder.iterdir()) == [files.path("one")]
    assert files.path("one").read_bytes() == b"data"


def test_a_part_that_another_looks_at_is_written(
    files: CachedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks whether it is abandoned holds its lock for a moment; the writer waits."""
    make, lock, looking = tempfile.mkstemp, fcntl.flock, []

    def make_seen(*, dir: Path, suffix: str) -> tuple[int, str]:
        descriptor, part = make(dir=dir, suffix=suffix)
        looking.append(os.open(part, os.O_RDONLY))
        lock(looking[0], fcntl.LOCK_EX)
        return descriptor, part

    def look_away(file: BinaryIO, operation: int) -> None:
        if not operation & fcntl.LOCK_NB:
            os.close(looking[0])
        lock(file, operation)

    monkeypatch.setattr(tempfile, "mkstemp", make_seen)
    monkeypatch.setattr(fcntl, "flock", look_away)

    assert files.write("one", 4, filler(b"data"))


def test_writers_at_once_leave_every_file(files: CachedFiles) -> None:
    """A model's files are hashed side by side, and each hash is kept."""

    def write(name: str) -> bool:
        return files.write(name, 4, filler(b"data"))

    with ThreadPoolExecutor(8) as threads:
        for _ in range(50):
            assert all(threads.map(write, "abcdefgh"))


def test_writers_at_once_leave_one_whole_file(files: CachedFiles) -> None:
    """Servers that start together write the same file."""
    datas = [bytes([value]) * 50 for value in range(8)]

    def write(data: bytes) -> bool:
        is_written = files.write("one", 50, filler(data))
        return is_written and files.path("one").read_bytes() in datas

    with ThreadPoolExecutor(8) as servers:
        assert all(servers.map(write, datas * 5))
    assert list(files.folder.iterdir()) == [files.path("one")]
