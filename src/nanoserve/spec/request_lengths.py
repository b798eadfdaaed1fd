"""Request lengths out of a CSV or JSONL file somebody recorded: prompt and output tokens.

Every refusal names the line. Knows no percentiles: see `capacity.workload`.
"""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanoserve.error_reasons import reason_of
from nanoserve.errors import OptionError
from nanoserve.units import MIB

MAX_REQUEST_TOKENS = 1 << 31
_SURE_DIGITS = 9  # any number of so many is under 2^31
_MAX_ROWS = 2_000_000
_MAX_FILE_BYTES = 256 * MIB
_PROMPT_KEYS = ("prompt", "prompt_tokens", "prompt_len", "input", "input_tokens", "input_len")
_OUTPUT_KEYS = ("output", "output_tokens", "output_len", "completion_tokens", "generated_tokens")
_TOTAL_KEYS = ("tokens", "total", "total_tokens", "length")


def read_request_lengths(path: Path) -> list[tuple[int, int]]:
    """Return prompt and output of each request in a .csv or .jsonl file.

    A CSV has a header; columns are `prompt` and `output`, or `tokens` for both together.

    Raises:
        OptionError: The file cannot be read, or a line is no request; its number is given.
    """
    return list(_rows(path))


def whole_tokens(value: Any, where: str) -> int:
    """Return a number of tokens; text is read as CSV has it.

    Raises:
        OptionError: It is no whole number from 0 to 2^31.
    """
    is_plain = isinstance(value, str) and len(value) <= _SURE_DIGITS and value.isascii()
    if is_plain and value.isdigit():  # of a million lines nearly all are
        return int(value)
    number = value
    if isinstance(value, str):
        is_short = len(value) <= 20
        number = float(value) if is_short and _is_number(value) else None
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not 0 <= number < MAX_REQUEST_TOKENS or number != int(number):
        message = f"{where} is {str(value)[:40]!r}; expected a whole number of tokens under 2^31."
        raise OptionError(message)
    return int(number)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _rows(path: Path) -> Iterator[tuple[int, int]]:
    """Yield prompt and output of each line; a total counts as a prompt."""
    content = _content(path)
    try:
        lines = _csv_rows(content, path) if path.suffix == ".csv" else _jsonl_rows(content, path)
        for number, row in lines:
            if number > _MAX_ROWS:
                message = f"{path} has more than {_MAX_ROWS:,} lines; give a sample of them."
                raise OptionError(message)
            yield _lengths(row, f"{path}, line {number}")
    except csv.Error as error:
        message = f"{path} is not CSV: {error}."
        raise OptionError(message) from None


def _content(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            message = f"{path} is larger than {_MAX_FILE_BYTES // MIB} MiB; give a sample of it."
            raise OptionError(message)
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read: {reason_of(error)}. Check the path of --workload."
        raise OptionError(message) from None


def _csv_rows(content: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield lines by their header; a field too many may be a number with a comma in it."""
    reader = csv.reader(content.splitlines(), strict=True)
    header = [name.strip().casefold() for name in next(reader, [])]
    for row in reader:
        if len(row) > len(header):
            message = (
                f"{path}, line {reader.line_num} has {len(row)} fields and the header "
                f"{len(header)}; write numbers without commas in them."
            )
            raise OptionError(message)
        if row:
            yield reader.line_num, dict(zip(header, row, strict=False))


def _jsonl_rows(content: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            message = f"{path}, line {number} is not JSON."
            raise OptionError(message) from None
        if not isinstance(row, dict):
            message = f"{path}, line {number} holds no object."
            raise OptionError(message)
        yield number, {key.strip().casefold(): value for key, value in row.items()}


def _lengths(row: dict[str, Any], where: str) -> tuple[int, int]:
    prompt, output = _first(row, _PROMPT_KEYS), _first(row, _OUTPUT_KEYS)
    if prompt is not None and output is not None:
        lengths = (
            whole_tokens(row[prompt], f"{where}: {prompt}"),
            whole_tokens(row[output], f"{where}: {output}"),
        )
    else:
        total = _first(row, _TOTAL_KEYS)
        if total is None:
            named = [key for key in row if row[key] not in (None, "")]
            names = ", ".join(str(key)[:20] for key in named[:8]) or "nothing"
            message = f"{where} has {names}; expected the columns prompt and output, or tokens."
            raise OptionError(message)
        lengths = whole_tokens(row[total], f"{where}: {total}"), 0
    if sum(lengths) == 0:
        message = f"{where} is a request of 0 tokens."
        raise OptionError(message)
    return lengths


def _first(row: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if row.get(name) not in (None, "")), None)
