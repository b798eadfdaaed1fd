"""The input of a batch: one request per line, in OpenAI's batch format.

Owns what a line must look like; what its body means is the server's. A line that names
itself with a `custom_id` is always answered, if only with a refusal; the others can only
be reported by number. Files are read line by line: only their ids are kept.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from nanoserve.error_reasons import reason_of
from nanoserve.errors import InvalidRequestError, OptionError

URLS = ("/v1/chat/completions", "/v1/completions")
MAX_LISTED = 20  # problems that are kept in words; the rest are counted


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request.

    Attributes:
        number: Of the line, from 1.
        custom_id: The client's name for it, unique in the file.
        url: The endpoint.
        body: What would be posted to it.
        refusal: Why it cannot be posted; None where it can.
    """

    number: int
    custom_id: str
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    refusal: InvalidRequestError | None = None


@dataclass(frozen=True, slots=True)
class LineProblem:
    """A line that cannot be answered, since nothing names it."""

    number: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.number:,} {self.problem}"


@dataclass(slots=True)
class Survey:
    """What there is to do.

    Attributes:
        num_open: Lines to answer.
        num_answered: Lines that have an answer already.
        num_problems: Lines that cannot be answered.
        problems: The first of these.
    """

    num_open: int = 0
    num_answered: int = 0
    num_problems: int = 0
    problems: list[LineProblem] = field(default_factory=list)


def survey_batch(path: Path, answered: Collection[str]) -> Survey:
    """Read the whole input once, to say what is wrong with it before a model is loaded.

    Raises:
        OptionError: The file cannot be read.
    """
    survey = Survey()
    for line in read_batch(path):
        if isinstance(line, LineProblem):
            survey.num_problems += 1
            if len(survey.problems) < MAX_LISTED:
                survey.problems.append(line)
        elif line.custom_id in answered:
            survey.num_answered += 1
        else:
            survey.num_open += 1
    return survey


def open_lines(path: Path, answered: Collection[str]) -> Iterator[BatchLine]:
    """Yield the lines that have no answer yet.

    Args:
        path: The input.
        answered: The custom_id of every answer; may grow while lines are read.

    Raises:
        OptionError: The file cannot be read.
    """
    for line in read_batch(path):
        if isinstance(line, BatchLine) and line.custom_id not in answered:
            yield line


def read_batch(path: Path) -> Iterator[BatchLine | LineProblem]:
    """Yield every line that is not blank.

    Raises:
        OptionError: The file cannot be read.
    """
    first_seen: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield _read_line(number, text, first_seen)
    except OSError as error:
        message = (
            f"Cannot read {path}: {reason_of(error)}. Give a JSONL file with one request a line."
        )
        raise OptionError(message) from error


def _read_line(number: int, text: bytes, first_seen: dict[str, int]) -> BatchLine | LineProblem:
    try:
        value = json.loads(text.decode())
    except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are ValueErrors
        return LineProblem(number, f"is not JSON: {error}")
    if not isinstance(value, dict):
        return LineProblem(number, "is no JSON object")
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id or not custom_id.isprintable():
        return LineProblem(number, "has no custom_id, which must be printable text")
    first = first_seen.setdefault(custom_id, number)
    if first != number:
        return LineProblem(number, f"has the custom_id {custom_id!r:.80} of line {first:,}")
    try:
        url, body = _read_request(value)
    except InvalidRequestError as refusal:
        return BatchLine(number, custom_id, refusal=refusal)
    return BatchLine(number, custom_id, url, body)


def _read_request(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    method, url, body = value.get("method"), value.get("url"), value.get("body")
    if method != "POST":
        _refuse("method", f"method is {method!r:.80}; it must be 'POST'.")
    if url not in URLS:
        _refuse("url", f"url is {url!r:.80}; it must be {' or '.join(URLS)}.")
    if not isinstance(body, dict):
        _refuse("body", f"body is {body!r:.80}; it must be an object.")
    if body.get("stream") not in (None, False):
        _refuse("stream", "A line of a batch has one answer; leave stream out or send false.")
    return url, body


def _refuse(param: str, message: str) -> NoReturn:
    raise InvalidRequestError(message, param)
