"""`nanoserve bench boots`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanoserve.cli.main import app
from nanoserve.errors import CorruptFileError

BOOTS = Path(__file__).parents[2] / "golden" / "engine_boots.jsonl"


def test_records_are_compared_and_summed_up() -> None:
    """A row for every figure, a line for every summary, n with each."""
    result = CliRunner().invoke(app, ["bench", "boots", str(BOOTS)])

    assert result.exit_code == 0, result.output
    for line in ("tokens: n 36", "pool: n 9", "outcome of failures: n 24", "115 records"):
        assert line in result.output


def test_json_and_configs_of_ones_own(tmp_path: Path) -> None:
    """Without any config every model is refused by name, as JSON too."""
    configs = tmp_path / "configs.jsonl"
    configs.write_text("")
    arguments = ["bench", "boots", str(BOOTS), "--configs", str(configs), "--json"]
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 0, result.output
    value = json.loads(result.output)
    assert value["summary"] == []
    assert value["refused"]["no config for the model"] > 80


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    """With its name."""
    result = CliRunner().invoke(app, ["bench", "boots", str(tmp_path / "nothing.jsonl")])

    assert isinstance(result.exception, CorruptFileError)
    with pytest.raises(CorruptFileError, match=r"nothing\.jsonl"):
        raise result.exception
