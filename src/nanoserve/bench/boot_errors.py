"""How far predictions are from recorded boots, figure by figure.

Reads records and configs line by line, compares what is predicted with what was logged, and
sums the errors up. A line that is no record is refused with its number; a record that cannot
be predicted is refused by name and counted. Prints nothing: see `boot_table`.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from nanoserve.bench.boot_cache import cache_layout
from nanoserve.bench.boot_case import BootCase, Configs, read_case
from nanoserve.bench.boot_doubts import doubts_of
from nanoserve.bench.boot_facts import UnsupportedRecordError
from nanoserve.bench.boot_outcomes import OutcomeCheck, check_outcome
from nanoserve.bench.boot_predict import (
    predict_concurrency,
    predict_pool,
    predict_tokens,
    predict_weights,
    weights_around,
)
from nanoserve.error_reasons import reason_of
from nanoserve.errors import CorruptFileError, OptionError
from nanoserve.units import GIB

Record = Mapping[str, Any]

POOL = "pool"
POOL_ASSUMED = "pool, facts assumed"
POOL_APART = "pool, set apart"
POOL_ALL = "pool, all"
POOL_ANY = "pool, those set apart included"
POOLS = (POOL, POOL_ASSUMED, POOL_APART)
_ORDER = ("tokens", "concurrency", "weights", *POOLS)
_RECORDS_ADVICE = "Name a JSONL file of recorded boots, such as tests/golden/engine_boots.jsonl of the repository."
_CONFIGS_ADVICE = "Name a JSONL file of objects with model and config, or leave --configs out."
_DIGIT = GIB * 6 // 1000  # half of the last digit of a GiB that logs print, and a bit


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one record, predicted and logged.

    Attributes:
        record_id: As the record has it.
        figure: `tokens`, `pool`, `concurrency`, `weights`, ...
        predicted: What follows from the model.
        logged: What the engine said.
        family: The model's.
        engine: The engine and the version its rules hold since.
        bounds: What nine of ten should lie between, the least and the most.
        notes: Facts that the record does not state, or that speak against it.
    """

    record_id: str
    figure: str
    predicted: float
    logged: float
    family: str = ""
    engine: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Share that the prediction is off by: 0.02 is 2 % too much."""
        return self.predicted / self.logged - 1

    @property
    def is_inside(self) -> bool:
        """Whether the logged figure lies in the interval."""
        return self.bounds[0] <= self.logged <= self.bounds[1]


@dataclass(frozen=True, slots=True)
class RecordReport:
    """What came of one record.

    Attributes:
        record_id: As the record has it.
        comparisons: Every figure that could be predicted and was logged.
        refusals: Why the others could not; each a kind and its detail.
        outcome: What became of the boot, named and recorded.
    """

    record_id: str
    comparisons: tuple[Comparison, ...]
    refusals: tuple[UnsupportedRecordError, ...]
    outcome: OutcomeCheck


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """The errors of one figure over all records.

    Attributes:
        figure: Its name.
        num_records: How many have it.
        median: Of the absolute errors.
        p90: 90th percentile of them, by nearest rank.
        p95: 95th percentile likewise.
        halves: Medians of the records with even and with odd place.
        num_inside: Logged figures that lie in their interval.
        worst: Comparisons, the furthest off first.
    """

    figure: str
    num_records: int
    median: float
    p90: float
    p95: float
    halves: tuple[float, float]
    num_inside: int
    worst: tuple[Comparison, ...]


def read_records(path: Path, advice: str = _RECORDS_ADVICE) -> tuple[dict[str, Any], ...]:
    """Return the records of a file, one JSON object a line.

    Args:
        path: The file.
        advice: What to name instead, where there is no such file.

    Raises:
        OptionError: There is no such file, or it may not be read.
        CorruptFileError: It is no text, or a line is no JSON object.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        message = f"{path} cannot be read: {reason_of(error)}. {advice}"
        raise OptionError(message) from None
    except UnicodeDecodeError as error:
        raise CorruptFileError(str(path), f"{reason_of(error)}.") from None
    return tuple(
        _record(line, number, path) for number, line in enumerate(lines, 1) if line.strip()
    )


def read_configs(path: Path | None = None) -> Configs:
    """Return configs by model name: objects with `model` and `config`, one a line.

    Args:
        path: The file; None for the packaged one.

    Raises:
        OptionError: There is no such file, or it may not be read.
        CorruptFileError: It is no text, or a line has not both.
    """
    packaged = Path(str(files("nanoserve.bench") / "data" / "boot_configs.jsonl"))
    source = packaged if path is None else path
    configs = {}
    for number, row in enumerate(read_records(source, _CONFIGS_ADVICE), 1):
        config = row.get("config")
        if not isinstance(row.get("model"), str) or not isinstance(config, Mapping):
            problem = f"object {number} has not both a model and its config."
            raise CorruptFileError(str(source), problem)
        configs[row["model"]] = config
    return configs


def examine(record: Record, configs: Configs) -> RecordReport:
    """Compare every figure of a record with its prediction; never raises for its contents."""
    name = str(record.get("id", "?"))[:40]
    try:
        case = read_case(record, configs)
    except UnsupportedRecordError as error:
        return RecordReport(name, (), (error,), check_outcome(record, None))
    comparisons: list[Comparison] = []
    refusals: list[UnsupportedRecordError] = []
    for compare in (_weights, _tokens, _concurrency, _pool):
        try:
            comparisons += compare(case, name)
        except UnsupportedRecordError as error:
            refusals.append(error)
    if not comparisons and not refusals:
        refusals.append(_nothing_logged(case))
    unique = {str(error): error for error in refusals}
    return RecordReport(
        name, tuple(comparisons), tuple(unique.values()), check_outcome(record, case)
    )


def _nothing_logged(case: BootCase) -> UnsupportedRecordError:
    detail = f"no weights, pool or tokens of a {case.shape.model_type} model"
    return UnsupportedRecordError(kind="nothing logged to compare", detail=detail)


def summarise(comparisons: list[Comparison]) -> list[ErrorSummary]:
    """Return one line of errors for each figure, and two for pools together."""
    figures = {name: [one for one in comparisons if one.figure == name] for name in _ORDER}
    figures[POOL_ALL] = [*figures[POOL], *figures[POOL_ASSUMED]]
    figures[POOL_ANY] = [*figures[POOL_ALL], *figures[POOL_APART]]
    return [_summary(figure, found) for figure, found in figures.items() if found]


def group_medians(
    comparisons: list[Comparison], group: Callable[[Comparison], str]
) -> dict[str, tuple[int, float, float]]:
    """Return for each group how many errors it has, their median with its sign, and the largest."""
    found: dict[str, list[float]] = {}
    for one in comparisons:
        found.setdefault(group(one), []).append(one.error)
    return {
        name: (len(errors), statistics.median(errors), max(errors, key=abs))
        for name, errors in sorted(found.items())
    }


def _summary(figure: str, comparisons: list[Comparison]) -> ErrorSummary:
    errors = [abs(one.error) for one in comparisons]
    ranked = sorted(errors)
    return ErrorSummary(
        figure,
        len(errors),
        statistics.median(errors),
        _percentile(ranked, 0.90),
        _percentile(ranked, 0.95),
        (statistics.median(errors[::2]), statistics.median(errors[1::2] or errors)),
        sum(one.is_inside for one in comparisons),
        tuple(sorted(comparisons, key=lambda one: -abs(one.error))),
    )


def _percentile(ranked: list[float], share: float) -> float:
    """Return the smallest error that at least that share of errors does not exceed."""
    return ranked[math.ceil(share * len(ranked)) - 1]


def _record(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        where = f", column {error.colno:,}" if isinstance(error, json.JSONDecodeError) else ""
        raise CorruptFileError(str(path), f"line {number}{where} is not JSON.") from None
    if not isinstance(value, dict):
        raise CorruptFileError(str(path), f"line {number} holds no object.")
    return value


def _weights(case: BootCase, name: str) -> Iterator[Comparison]:
    logged = case.boot.weight_bytes
    if logged and logged > 0:
        weights = predict_weights(case)
        around = weights_around(case, weights)
        found = _compared(case, name, "weights", weights, logged)
        yield replace(found, bounds=(around.low - _DIGIT, around.high + _DIGIT))


def _tokens(case: BootCase, name: str) -> Iterator[Comparison]:
    pool, logged = case.boot.pool_bytes, case.boot.tokens
    if pool and pool > 0 and logged:
        low, mid, high = (predict_tokens(case, size) for size in _around(pool))
        yield replace(_compared(case, name, "tokens", mid, logged), bounds=(low, high))


def _concurrency(case: BootCase, name: str) -> Iterator[Comparison]:
    pool, logged = _logged_pool(case), case.boot.max_concurrency
    if pool and pool > 0 and logged and case.boot.max_model_len:
        low, mid, high = (predict_concurrency(case, size) for size in _around(pool))
        found = _compared(case, name, "concurrency", mid, logged)
        yield replace(found, bounds=(low - _DIGIT / GIB, high + _DIGIT / GIB))


def _around(pool: int) -> tuple[int, int, int]:
    """Return a pool that was logged to two digits, and the least and the most it may have been."""
    return max(0, pool - _DIGIT), pool, pool + _DIGIT


def _pool(case: BootCase, name: str) -> Iterator[Comparison]:
    logged = _logged_pool(case)
    if not logged or logged <= 0:
        return
    predicted = predict_pool(case)
    doubts = doubts_of(case, predicted)
    figure = POOL_APART if doubts else POOL_ASSUMED if case.assumed else POOL
    found = _compared(case, name, figure, predicted.pool.mid, logged)
    bounds = (predicted.pool.low, predicted.pool.high)
    yield replace(found, bounds=bounds, notes=(*case.assumed, *doubts))


def _logged_pool(case: BootCase) -> int | None:
    if case.boot.pool_bytes is not None or case.boot.num_blocks is None:
        return case.boot.pool_bytes
    return case.boot.num_blocks * cache_layout(case).block_bytes


def _compared(
    case: BootCase, name: str, figure: str, predicted: float, logged: float
) -> Comparison:
    since = ".".join(map(str, case.profile.since))
    engine = f"{case.profile.engine} {since}"
    return Comparison(name, figure, predicted, logged, case.shape.model_type, engine)
