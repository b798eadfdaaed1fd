"""A file for a result: tried before the work, and named where it cannot be written."""

import os
from pathlib import Path

import pytest

from nanoserve.errors import OptionError
from nanoserve.launch.output_file import check_writable, writing


def test_trial_leaves_no_trace(tmp_path: Path) -> None:
    """A new file is not left behind, and an old one keeps its text."""
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("before")

    check_writable("--out", str(new))
    check_writable("--out", str(old))
    check_writable("--out", None)

    assert not new.exists()
    assert old.read_text() == "before"


def test_trial_keeps_a_link_to_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    """It is the file behind the link that is tried."""
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")

    check_writable("--out", str(link))

    assert link.is_symlink()
    assert not link.exists()


@pytest.mark.parametrize("name", ["missing/report.json", ".", "nul\0byte"])
def test_file_that_cannot_be_written_is_an_option_error(tmp_path: Path, name: str) -> None:
    """The message names the flag and the reason."""
    with pytest.raises(OptionError, match="--out"):
        check_writable("--out", str(tmp_path / name))


def test_a_write_that_fails_has_flag_file_and_reason(tmp_path: Path) -> None:
    """A folder that was there may be gone after the work."""
    path = str(tmp_path / "gone" / "file")

    with pytest.raises(OptionError) as refusal, writing("--out", path):
        Path(path).write_text("result")

    assert str(refusal.value).startswith(f"--out {path!r} cannot be written: No such file")


def test_trial_leaves_a_pipe_to_what_is_written(tmp_path: Path) -> None:
    """Opening one waits for a reader, and who reads it would see it end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    check_writable("--out", str(pipe))

    read, write = os.pipe()
    os.close(read)
    check_writable("--out", f"/dev/fd/{write}")
    os.close(write)
