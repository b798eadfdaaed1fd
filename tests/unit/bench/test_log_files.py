"""Logs are repeated to the size asked for, whole, and an empty one is refused."""

from pathlib import Path

import pytest
from bench.log_files import repeated
from bench.log_reading import main, read_log


@pytest.mark.parametrize(("num_bytes", "copies"), [(2, 1), (3, 1), (8, 2)])
def test_a_log_is_repeated_whole_and_once_at_least(num_bytes: int, copies: int) -> None:
    """One that is larger than asked for is read as it is."""
    assert repeated(b"log", num_bytes) == b"log" * copies


def test_an_empty_log_is_refused(tmp_path: Path) -> None:
    """No number of copies has a size; and so is one that is not there."""
    path = tmp_path / "log"
    for _ in range(2):
        with pytest.raises(SystemExit, match="is no file with lines in it"):
            read_log(str(path))
        path.write_bytes(b"")


@pytest.mark.parametrize("size", ["--help", "0", "-1", "nan", "inf"])
def test_what_is_no_size_is_refused(size: str) -> None:
    """In one line."""
    with pytest.raises(SystemExit, match=f"{size} is no size in MB"):
        main(size)
