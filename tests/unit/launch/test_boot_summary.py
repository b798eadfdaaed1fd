"""The report file: tried before a boot, written after it."""

from pathlib import Path

import pytest

from nanoserve.errors import OptionError
from nanoserve.launch.boot_summary import check_writable, write_report


def test_trial_leaves_no_trace(tmp_path: Path) -> None:
    """A new file is not left behind, and an old one keeps its text."""
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("before")

    check_writable(str(new))
    check_writable(str(old))
    check_writable(None)

    assert not new.exists()
    assert old.read_text() == "before"


def test_trial_keeps_a_link_to_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    """It is the file behind the link that is tried."""
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")

    check_writable(str(link))

    assert link.is_symlink()
    assert not link.exists()


@pytest.mark.parametrize("name", ["missing/report.json", ".", "nul\0byte"])
def test_file_that_cannot_be_written_is_an_option_error(tmp_path: Path, name: str) -> None:
    """The message names the flag and the reason."""
    with pytest.raises(OptionError, match="--boot-report"):
        check_writable(str(tmp_path / name))


def test_report_is_json(tmp_path: Path) -> None:
    """Written whole, with a newline at its end; nothing without a file."""
    path = tmp_path / "report.json"

    write_report(str(path), {"seconds": 1.5})
    write_report(None, {})

    assert path.read_text() == '{\n  "seconds": 1.5\n}\n'


def test_folder_that_went_away_is_an_option_error(tmp_path: Path) -> None:
    """It was there when it was tried."""
    with pytest.raises(OptionError, match="cannot be written"):
        write_report(str(tmp_path / "gone" / "report.json"), {})
