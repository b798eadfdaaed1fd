"""A file that was changed in any way is not who it was."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanoserve.spec.file_identity import read_identity

SECOND_NS = 1_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.write_bytes(b"weights")
    return path


def rewritten(path: Path) -> None:
    """Change a byte; put size and time back."""
    status = path.stat()
    with path.open("r+b") as file:
        file.write(b"W")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(path: Path) -> None:
    """Put a copy, its time included, in the file's place."""
    other = path.with_suffix(".other")
    shutil.copy2(path, other)
    other.replace(path)


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"!")


@pytest.mark.parametrize("change", [rewritten, replaced, appended, os.utime])
def test_whatever_happens_to_a_file_is_seen(path: Path, change: Callable[[Path], None]) -> None:
    """Also right after it was looked at, which is as soon as its clock would tell."""
    before = read_identity(path)
    assert before.is_settled
    assert read_identity(path) == before

    change(path)

    assert read_identity(path) != before


def test_a_link_is_the_file_it_leads_to(path: Path) -> None:
    """As a hub snapshot's are."""
    link = path.with_suffix(".link")
    link.symlink_to(path)

    assert read_identity(link) == read_identity(path)


def test_a_file_that_is_not_there_has_no_identity(tmp_path: Path) -> None:
    """The caller knows what that means."""
    with pytest.raises(FileNotFoundError):
        read_identity(tmp_path / "gone")


@pytest.mark.parametrize(
    ("age_ns", "digits_ns", "is_settled"),
    [
        (3 * SECOND_NS, 0, True),
        (SECOND_NS, 0, False),  # whole seconds: a clock as coarse as FAT's
        (SECOND_NS, 1, True),
        (-SECOND_NS, 1, False),  # from the future, as after the clock was put back
    ],
)
def test_a_coarse_clock_takes_longer(
    path: Path, monkeypatch: pytest.MonkeyPatch, age_ns: int, digits_ns: int, is_settled: bool
) -> None:
    """A change in the same tick of the file system's clock would not be seen."""
    now_ns = 1_000 * SECOND_NS
    changed_ns = now_ns - age_ns + digits_ns
    times = {"st_mtime_ns": changed_ns, "st_ctime_ns": changed_ns}
    status = SimpleNamespace(st_dev=1, st_ino=2, st_size=3, **times)
    monkeypatch.setattr(os, "fstat", lambda descriptor: status)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    monkeypatch.setattr(time, "sleep", None)  # no wait is long enough here

    assert read_identity(path).is_settled == is_settled
