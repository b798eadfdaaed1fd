"""`batch_file`: what a line must be, and what can be said of one that is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanoserve.errors import OptionError
from nanoserve.launch.batch_file import (
    MAX_LISTED,
    BatchLine,
    LineProblem,
    open_lines,
    read_batch,
    survey_batch,
)


def line_of(custom_id: str = "a", **changes: Any) -> bytes:
    fields = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"n": 1}}
    return json.dumps(fields | changes).encode()


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


def test_a_line_is_a_call(batch: Path) -> None:
    """Blank lines are passed over, and counted in the numbers."""
    write(batch, line_of("a"), b"  ", line_of("b", url="/v1/chat/completions", body={}))

    assert list(read_batch(batch)) == [
        BatchLine(1, "a", "/v1/completions", {"n": 1}),
        BatchLine(3, "b", "/v1/chat/completions", {}),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"1" * 5000, "is not JSON"),
        (b"[1]", "is no JSON object"),
        (b"{}", "has no custom_id"),
        (b'{"custom_id": 5}', "has no custom_id"),
        (b'{"custom_id": ""}', "has no custom_id"),
        (b'{"custom_id": "\\ud800"}', "has no custom_id"),
        (line_of("first"), "has the custom_id 'first' of line 1"),
    ],
)
def test_a_line_that_nothing_names_is_a_problem(batch: Path, text: bytes, problem: str) -> None:
    """It is told by its number; the lines around it are read."""
    write(batch, line_of("first"), text, line_of("last"))

    first, bad, last = read_batch(batch)

    assert isinstance(bad, LineProblem)
    assert str(bad).startswith(f"line 2 {problem}")
    assert (first.number, last.number) == (1, 3)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"method": "GET"}, "method"),
        ({"url": "/v1/embeddings"}, "url"),
        ({"url": ["/v1/completions"]}, "url"),
        ({"body": "text"}, "body"),
        ({"body": {"stream": True}}, "stream"),
        ({"body": {"stream": 1}}, "stream"),
    ],
)
def test_a_named_line_that_is_no_call_is_refused(
    batch: Path, changes: dict[str, Any], param: str
) -> None:
    """The refusal becomes its answer, and names the field."""
    write(batch, line_of("a", **changes))

    (line,) = read_batch(batch)

    assert isinstance(line, BatchLine)
    assert line.refusal is not None
    assert line.refusal.param == param


def test_a_survey_accounts_for_every_line(batch: Path) -> None:
    """Open, answered and unreadable; of the last only the first few are kept in words."""
    write(batch, line_of("a"), line_of("b"), line_of("c"), *[b"{"] * 50)

    survey = survey_batch(batch, {"b"})

    assert (survey.num_open, survey.num_answered, survey.num_problems) == (2, 1, 50)
    assert len(survey.problems) == MAX_LISTED
    assert [line.custom_id for line in open_lines(batch, {"b"})] == ["a", "c"]


def test_a_missing_file_is_an_option_error(batch: Path) -> None:
    """The message names it."""
    with pytest.raises(
        OptionError, match=r"Cannot read .*in\.jsonl: No such file.* Give a JSONL file"
    ):
        survey_batch(batch, ())
