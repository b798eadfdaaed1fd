"""How far predictions are from recorded boots, figure by figure.

What can be said of a record without its model's shape: tokens from a logged pool, the pool
from the other logged parts, concurrency from tokens, and the outcome. Reads records line by
line; a line that is no record is refused with its number.
"""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoserve.errors import CorruptFileError
from nanoserve.plan.boot_record import boot_of_record
from nanoserve.plan.engine_profile import EngineProfile, find_profile, profile_of, version_numbers
from nanoserve.plan.logged_boot import DEFAULT_BLOCK_SIZE, LoggedBoot

Record = dict[str, Any]

_LAST_V0 = (0, 7)
_YEARS = {"2023": (0, 2), "2024": (0, 5), "2025": (0, 9)}  # what vLLM was at in that year


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one record, predicted and logged.

    Attributes:
        record_id: As the record has it.
        figure: `tokens`, `pool` or `concurrency`.
        predicted: What follows from the record's other figures.
        logged: What the engine said.
    """

    record_id: str
    figure: str
    predicted: float
    logged: float

    @property
    def error(self) -> float:
        """Share that the prediction is off by: 0.02 is 2 % too much."""
        return self.predicted / self.logged - 1


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """The errors of one figure over all records.

    Attributes:
        figure: Its name.
        num_records: How many have it.
        median: Of the absolute errors.
        p95: 95th percentile of them.
        worst: The comparison that is furthest off.
    """

    figure: str
    num_records: int
    median: float
    p95: float
    worst: Comparison


def read_records(path: Path) -> tuple[Record, ...]:
    """Return the records of a file, one JSON object a line.

    Raises:
        CorruptFileError: The file cannot be read, or a line is no JSON object.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptFileError(str(path), f"it cannot be read ({error}).") from None
    return tuple(
        _record(line, number, path) for number, line in enumerate(lines, 1) if line.strip()
    )


def profile_of_record(record: Record) -> EngineProfile:
    """Return the profile of a record's engine; versions are written as prose in records.

    Forks of vLLM are taken for vLLM. Without a release the year decides; `V0` is the engine
    before 0.8, whatever the release.
    """
    engine = boot_of_record(record).engine or "vllm"
    text = str(record.get("engine_version", ""))
    if engine != "vllm":
        return find_profile(engine)
    numbers = _release(text) or _release_of_year(text)
    if numbers is None:
        return find_profile(engine)
    return profile_of(engine, min(numbers, _LAST_V0) if "V0" in text else numbers)


def _release(text: str) -> tuple[int, ...] | None:
    """Return the first release named; `0.1.dev…` is what a build without tags calls itself."""
    words = [word.strip("~(),").split("-")[0].rstrip("+") for word in text.split()]
    found = (version_numbers(word) for word in words if "." in word and "0.1.dev" not in word)
    return next((numbers for numbers in found if numbers is not None and len(numbers) > 1), None)


def _release_of_year(text: str) -> tuple[int, ...] | None:
    return next((numbers for year, numbers in _YEARS.items() if year in text), None)


def compare_record(record: Record) -> Iterator[Comparison]:
    """Yield every figure that a record has both ways."""
    boot = boot_of_record(record)
    name = str(record.get("id", "?"))
    for figure, predicted, logged in (
        ("tokens", _tokens(record, boot), boot.tokens),
        ("pool", _pool(record, boot), boot.pool_bytes),
        ("concurrency", _concurrency(boot), boot.max_concurrency),
    ):
        if predicted is not None and logged:
            yield Comparison(name, figure, predicted, logged)


def summarise(comparisons: list[Comparison]) -> list[ErrorSummary]:
    """Return one line of errors for each figure, in order of first appearance."""
    figures = dict.fromkeys(one.figure for one in comparisons)
    return [
        _summary(figure, [one for one in comparisons if one.figure == figure]) for figure in figures
    ]


def _summary(figure: str, comparisons: list[Comparison]) -> ErrorSummary:
    errors = sorted(abs(one.error) for one in comparisons)
    return ErrorSummary(
        figure,
        len(errors),
        statistics.median(errors),
        errors[min(len(errors) - 1, int(0.95 * len(errors)))],
        max(comparisons, key=lambda one: abs(one.error)),
    )


def _record(line: str, number: int, path: Path) -> Record:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(str(path), f"line {number} is not JSON ({error}).") from None
    if not isinstance(value, dict):
        raise CorruptFileError(str(path), f"line {number} holds no object.")
    return value


def _tokens(record: Record, boot: LoggedBoot) -> float | None:
    """Return whole blocks of the logged pool, in tokens, by the record's bytes per token."""
    token_bytes = record.get("bytes_per_token_formula")
    if not isinstance(token_bytes, int | float) or token_bytes <= 0 or not boot.pool_bytes:
        return None
    block_size = boot.block_size or DEFAULT_BLOCK_SIZE
    return boot.pool_bytes // (int(token_bytes) * block_size) * block_size


def _pool(record: Record, boot: LoggedBoot) -> float | None:
    """Return what the engine's rule leaves of its budget after the parts it logged."""
    requested = boot.requested_bytes
    held = boot.consumed_bytes
    if held is None and boot.weight_bytes is not None and boot.non_torch_bytes is not None:
        held = boot.weight_bytes + boot.non_torch_bytes
    if requested is None or held is None or boot.activation_bytes is None:
        return None
    takes_estimate = profile_of_record(record).graphs == "estimate in budget"
    estimate = (boot.graph_estimate_bytes or 0) if takes_estimate else 0
    return requested - held - boot.activation_bytes - estimate


def _concurrency(boot: LoggedBoot) -> float | None:
    if boot.tokens is None or not boot.max_model_len:
        return None
    return boot.tokens / boot.max_model_len
