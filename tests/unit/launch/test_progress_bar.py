"""`progress_bar`: only on a terminal."""

import pytest

from nanoserve.launch.progress_bar import progress_bar


@pytest.mark.parametrize("show", [True, False])
def test_nothing_is_printed_where_there_is_no_terminal(
    capfd: pytest.CaptureFixture[str], show: bool
) -> None:
    """A log file gets no bar."""
    with progress_bar("work", 2, show) as advance:
        advance()

    assert capfd.readouterr() == ("", "")
