"""Logs are repeated to the size asked for, whole, and an empty one is refused."""

from pathlib import Path

import pytest
from bench.log_files import repeated
from bench.log_reading import read_log


@pytest.mark.parametrize(("num_bytes", "copies"), [(2, 1), (3, 1), (8, 2)])
def test_a_log_is_repeated_whole_and_once_at_least(num_bytes: int, copies: int) -> None:
    """One that is larger than asked for is read as it is."""
    assert repeated(b"log", num_bytes) == b"log" * copies


def test_an_empty_log_is_refused(tmp_path: Path) -> None:
    """No number of copies has a size."""
    path = tmp_path / "log"
    path.write_bytes(b"")

    with pytest.raises(SystemExit, match="is empty"):
        read_log(str(path))
