"""Lengths of the requests that a plan is held against: stated, or read from a file.

Owns the spellings of `--workload`. Knows no memory: how many fit is `cache_cost`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nanoserve.errors import OptionError
from nanoserve.spec.request_lengths import read_request_lengths, whole_tokens
from nanoserve.units import ceil_div

DEFAULT_TOKENS = 8192  # of one request, where nobody states a workload
_FORMS = (
    "write prompt=1000,output=6000, or p50=1800,p95=2400 (whole requests), or "
    "prompt_p50=500,prompt_p95=2000,output_p50=200,output_p95=900, or tokens=8192, or the "
    "path of a .csv or .jsonl file with the columns prompt and output"
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths of requests in tokens, prompt and output together where not said.

    Attributes:
        mean: Mean final length.
        p50: Median final length.
        p95: 95th percentile of it; plans are sized with this.
        mean_prompt: Mean prompt.
        source: As stated, for people.
        num_requests: Requests of the file it was read from; 0 for stated lengths.
    """

    mean: int
    p50: int
    p95: int
    mean_prompt: int
    source: str
    num_requests: int = 0

    def __post_init__(self) -> None:
        """Refuse what no request can be.

        Raises:
            OptionError: A request without tokens, or a p95 under the median.
        """
        if min(self.mean, self.p50, self.p95) < 1:
            message = f"--workload {self.source[:80]!r}: a request has at least one token."
            raise OptionError(message)
        if self.p95 < self.p50:
            message = (
                f"--workload {self.source[:80]!r}: p95 {self.p95:,} is under p50 {self.p50:,}."
            )
            raise OptionError(message)

    @property
    def longest_stated(self) -> int:
        """The longest final length that the plan looks at."""
        return max(self.mean, self.p50, self.p95)


def default_workload(longest: int | None) -> Workload:
    """Return requests of 8,192 tokens, or of the model's longest where that is less."""
    tokens = DEFAULT_TOKENS if longest is None else min(DEFAULT_TOKENS, longest)
    return Workload(tokens, tokens, tokens, max(1, tokens - tokens // 4), f"{tokens:,} tokens")


def parse_workload(text: str) -> Workload:
    """Return the workload that `--workload` states.

    Raises:
        OptionError: It is none of the forms, a length is impossible, or a line of the file
            cannot be read; the line's number is given.
    """
    if "=" in text:
        return _stated(text)
    path = Path(os.path.expanduser(text))  # unlike Path's, leaves the home of nobody as it is
    if path.suffix not in (".csv", ".jsonl") or not text:
        message = f"--workload {text[:80]!r} is not a workload: {_FORMS}."
        raise OptionError(message)
    return workload_of_requests(read_request_lengths(path), path.name)


def _stated(text: str) -> Workload:
    values = _pairs(text)
    names = set(values)
    if names == {"prompt", "output"}:
        total = values["prompt"] + values["output"]
        return Workload(total, total, total, values["prompt"], text)
    if names in ({"tokens"}, {"total"}):
        total = values.popitem()[1]
        return Workload(total, total, total, max(1, total - total // 4), text)
    if names == {"p50", "p95"}:
        p50, p95 = values["p50"], values["p95"]
        return Workload(p50, p50, p95, max(1, p50 - p50 // 4), text)
    if names == {f"{part}_{rank}" for part in ("prompt", "output") for rank in ("p50", "p95")}:
        for part in ("prompt", "output"):
            if values[f"{part}_p95"] < values[f"{part}_p50"]:
                message = f"--workload {text[:80]!r}: {part}_p95 is under {part}_p50."
                raise OptionError(message)
        p50 = values["prompt_p50"] + values["output_p50"]
        p95 = values["prompt_p95"] + values["output_p95"]
        return Workload(p50, p50, p95, values["prompt_p50"], text)
    message = f"--workload {text[:80]!r} is not a workload: {_FORMS}."
    raise OptionError(message)


def _pairs(text: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for pair in text.split(","):
        name, _, number = pair.partition("=")
        name = name.strip().casefold()
        if name in values:
            message = f"--workload states {name[:40]} twice: {_FORMS}."
            raise OptionError(message)
        values[name] = whole_tokens(number.strip().replace("_", ""), f"--workload: {name[:40]}")
    return values


def workload_of_requests(rows: Sequence[tuple[int, int]], name: str) -> Workload:
    """Return the mean and the percentiles of requests given as prompt and output.

    Raises:
        OptionError: There is none.
    """
    if not rows:
        message = f"--workload {name[:80]!r} has no request in it."
        raise OptionError(message)
    totals = sorted(prompt + output for prompt, output in rows)
    return Workload(
        mean=ceil_div(sum(totals), len(totals)),
        p50=_percentile(totals, 50),
        p95=_percentile(totals, 95),
        mean_prompt=max(1, sum(prompt for prompt, _ in rows) // len(rows)),
        source=f"{len(rows):,} requests of {name}",
        num_requests=len(rows),
    )


def _percentile(ordered: list[int], percent: int) -> int:
    """Return the nearest-rank percentile."""
    return ordered[max(0, ceil_div(percent * len(ordered), 100) - 1)]
