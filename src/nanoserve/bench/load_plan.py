"""What a load sends and when, decided before the first byte: pure, and the same for a seed.

Prompts are random token ids of ordinary words, or common words where a server takes text
alone. Knows no server; `load_generator` sends what is planned here.
"""

import csv
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

from nanoserve.bench.serve_bench_options import MAX_TOKENS, ServeBenchOptions, parse_range
from nanoserve.error_reasons import reason_of
from nanoserve.errors import OptionError
from nanoserve.spec.request_lengths import whole_tokens

TOKEN_IDS = range(1000, 30000)  # ordinary tokens in every vocabulary we serve
_LENGTHS_ADVICE = "Give CSV with a header, or JSONL: prompt_tokens, output_tokens."
# One token each, with a space before them, in the vocabularies tried.
_WORDS = (
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
)


Kind = Literal["stream", "intruder"]


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of a load.

    Attributes:
        prompt: Token ids, or text.
        prompt_tokens: How many tokens it was meant to have.
        output_tokens: How many it asks for.
        kind: `intruder` is the long prompt of an interference run.
        send_at_s: Since the start; None where it waits for a place in a closed loop.
    """

    prompt: tuple[int, ...] | str
    prompt_tokens: int
    output_tokens: int
    kind: Kind = "stream"
    send_at_s: float | None = None


def plan_requests(options: ServeBenchOptions) -> tuple[PlannedRequest, ...]:
    """Return the requests of an open or closed loop, in the order of their sending.

    Raises:
        OptionError: The length file cannot be read.
    """
    lengths = _lengths(options)
    due = _arrivals(options, len(lengths))
    prompts = _Prompts(options)
    return tuple(
        PlannedRequest(prompts.next(prompt_tokens), prompt_tokens, output_tokens, send_at_s=at_s)
        for (prompt_tokens, output_tokens), at_s in zip(lengths, due, strict=True)
    )


def endless_streams(options: ServeBenchOptions) -> Iterator[PlannedRequest]:
    """Yield requests for streams that are to run for as long as an interference run lasts."""
    prompts = _Prompts(options)
    rng = random.Random(f"lengths {options.seed}")
    while True:
        prompt_tokens, output_tokens = _draw_lengths(options, rng)
        yield PlannedRequest(prompts.next(prompt_tokens), prompt_tokens, output_tokens)


def plan_intruders(options: ServeBenchOptions) -> tuple[PlannedRequest, ...]:
    """Return the long prompts of an interference run; none if none are asked for."""
    if options.intruder_tokens is None:
        return ()
    rng = random.Random(f"intruders {options.seed}")
    length = options.intruder_tokens
    return tuple(
        PlannedRequest(
            _as_prompt(rng.choices(TOKEN_IDS, k=length), options.prompt_format),
            length,
            2,
            "intruder",
            options.quiet_seconds + index * options.intruder_every,
        )
        for index in range(options.num_intruders)
    )


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """Return (prompt tokens, output tokens) of each line of a CSV or JSONL file.

    Raises:
        OptionError: The file cannot be read, or a line has no such numbers; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"--length-file {path} cannot be read: {reason_of(error)}. {_LENGTHS_ADVICE}"
        raise OptionError(message) from None
    is_json = bool(lines) and lines[0].lstrip().startswith("{")
    rows = _json_rows(lines) if is_json else csv.DictReader(lines, skipinitialspace=True)
    try:
        lengths = [_length_pair(path, number, row) for number, row in enumerate(rows, 1)]
    except csv.Error as error:
        message = f"--length-file {path} is not CSV: {error}. {_LENGTHS_ADVICE}"
        raise OptionError(message) from None
    if not lengths:
        message = f"--length-file {path} has no requests. {_LENGTHS_ADVICE}"
        raise OptionError(message)
    return lengths


def _json_rows(lines: list[str]) -> Iterator[object]:
    for line in lines:
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                yield None


def _length_pair(path: Path, number: int, row: object) -> tuple[int, int]:
    values = row if isinstance(row, Mapping) else {}
    where = f"--length-file {path}: request {number}"
    return (
        _length(values.get("prompt_tokens"), f"{where} has prompt_tokens"),
        _length(values.get("output_tokens"), f"{where} has output_tokens"),
    )


def _length(value: object, where: str) -> int:
    try:
        length = whole_tokens(value, where)
    except OptionError:
        length = 0
    if not 1 <= length <= MAX_TOKENS:
        shown = "nothing" if value is None else f"{str(value)!r:.40}"
        message = f"{where} {shown}; it must be a whole number from 1 to {MAX_TOKENS:,}. {_LENGTHS_ADVICE}"
        raise OptionError(message)
    return length


def _lengths(options: ServeBenchOptions) -> list[tuple[int, int]]:
    if options.length_file is not None:
        return read_lengths(Path(options.length_file))[: options.num_requests]
    rng = random.Random(f"lengths {options.seed}")
    return [_draw_lengths(options, rng) for _ in range(options.num_requests)]


def _draw_lengths(options: ServeBenchOptions, rng: random.Random) -> tuple[int, int]:
    prompt_range = parse_range("--prompt-tokens", options.prompt_tokens, 1)
    output_range = parse_range("--output-tokens", options.output_tokens, 2)
    return rng.randint(*prompt_range), rng.randint(*output_range)


def _arrivals(options: ServeBenchOptions, count: int) -> list[float | None]:
    """Return when each request is due; the first at once."""
    rate = options.request_rate
    if rate is None:
        return [None] * count
    if options.arrivals == "constant":
        return [index / rate for index in range(count)]
    rng = random.Random(f"arrivals {options.seed}")
    return list(accumulate((rng.expovariate(rate) for _ in range(count - 1)), initial=0.0))


class _Prompts:
    """Deals out prompts; those of one prefix begin with the same tokens."""

    def __init__(self, options: ServeBenchOptions) -> None:
        self._format = options.prompt_format
        self._rng = random.Random(f"prompts {options.seed}")
        self._prefixes = [
            self._rng.choices(TOKEN_IDS, k=options.prefix_tokens)
            for _ in range(options.num_prefixes)
        ]
        self._count = 0

    def next(self, prompt_tokens: int) -> tuple[int, ...] | str:
        """Return a prompt; one shorter than its prefix is cut from it."""
        prefix = self._prefixes[self._count % len(self._prefixes)][:prompt_tokens]
        self._count += 1
        rest = self._rng.choices(TOKEN_IDS, k=prompt_tokens - len(prefix))
        return _as_prompt([*prefix, *rest], self._format)


def _as_prompt(token_ids: list[int], prompt_format: str) -> tuple[int, ...] | str:
    if prompt_format == "ids":
        return tuple(token_ids)
    return "".join(f" {_WORDS[token_id % len(_WORDS)]}" for token_id in token_ids)
