"""The script that prints how far predictions are from recorded boots."""

from pathlib import Path

import pytest
from scripts.boot_errors import main

BOOTS = Path(__file__).parents[2] / "golden" / "engine_boots.jsonl"


def test_every_figure_and_every_outcome_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Each figure has its number of records, and all records an outcome."""
    main(BOOTS)
    printed = capsys.readouterr().out

    for figure in ("tokens: n 36", "pool: n 22", "concurrency: n 37", "outcomes of 115"):
        assert figure in printed
