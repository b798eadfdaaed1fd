"""The report file of a boot, written after it."""

from pathlib import Path

import pytest

from nanoserve.errors import OptionError
from nanoserve.launch.boot_summary import write_report


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
