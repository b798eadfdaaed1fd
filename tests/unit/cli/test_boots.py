"""`nanoserve bench boots`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanoserve.bench.boot_errors import read_configs, read_records
from nanoserve.cli.main import app
from nanoserve.errors import CorruptFileError, OptionError

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


def test_a_file_that_is_not_there_is_not_called_damaged(tmp_path: Path) -> None:
    """What to name instead is said, of records and of configs."""
    absent = tmp_path / "nothing.jsonl"

    with pytest.raises(OptionError, match=r"nothing\.jsonl cannot be read: No such.*engine_boots"):
        read_records(absent)
    with pytest.raises(OptionError, match=r"nothing\.jsonl cannot be read: No such.*--configs"):
        read_configs(absent)


def test_a_file_that_is_no_text_is_damaged(tmp_path: Path) -> None:
    """With its name."""
    path = tmp_path / "bytes.jsonl"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(CorruptFileError, match=r"bytes\.jsonl is damaged: it is not UTF-8 text"):
        read_records(path)
