"""Options of `nanoserve bench serve`: frozen, checked once; the flags are made from them."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nanoserve.errors import OptionError

Arrivals = Literal["poisson", "constant"]
PromptFormat = Literal["ids", "text"]
SLO_NAMES = ("ttft", "tpot", "itl", "e2e")
DEFAULT_CONCURRENCY = 8
MAX_TOKENS = 10**7  # of one request: more than any model's context
_MAX_REQUESTS = 10**6  # of one load, which is planned before it is sent


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class ServeBenchOptions:
    """What `nanoserve bench serve` sends and reports; `help` of each field is its meaning."""

    url: str = _option("http://127.0.0.1:8000", "where the server listens; may end in /v1")
    model: str | None = _option(None, "model to ask for (default: the first of /v1/models)")
    concurrency: int | None = _option(
        None, f"closed loop: requests in flight at once (default: {DEFAULT_CONCURRENCY})"
    )
    request_rate: float | None = _option(
        None, "open loop: requests sent a second, whether or not others have been answered"
    )
    arrivals: Arrivals = _option("poisson", "how an open loop's requests are spaced")
    num_requests: int = _option(16, "requests in all")
    prompt_tokens: str = _option("128", "tokens of each prompt: a number, or a range like 64-256")
    output_tokens: str = _option("128", "tokens of each answer: a number, or a range like 16-128")
    length_file: str | None = _option(
        None, "CSV or JSONL with prompt_tokens and output_tokens of each request, in order"
    )
    prefix_tokens: int = _option(0, "first tokens of a prompt that are shared with others")
    num_prefixes: int = _option(1, "different shared prefixes, dealt out in turn")
    prompt_format: PromptFormat = _option(
        "ids", "token ids, or text of common words for a server that takes no ids"
    )
    seed: int = _option(0, "decides every prompt, length and arrival")
    intruder_tokens: int | None = _option(
        None, "interference: length of a prompt that arrives again and again beside the streams"
    )
    intruder_every: float = _option(4.0, "interference: seconds between two of them")
    num_intruders: int = _option(5, "interference: how many of them")
    quiet_seconds: float = _option(8.0, "interference: how long streams run before the first")
    slo: str | None = _option(
        None, "limits in ms for goodput, of ttft, tpot, itl (p99) and e2e: ttft=500,itl=50"
    )
    timeout: float = _option(600.0, "seconds after which a request has failed")
    extra_body: str | None = _option(None, "JSON object that is added to each request")
    json: str | None = _option(None, "file that gets the report and every request as JSON")
    csv: str | None = _option(None, "file that gets one line for each request")
    plot: str | None = _option(None, "picture of the run: FILE.png or FILE.svg; needs matplotlib")

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            OptionError: Names the flag, its value and what is allowed.
        """
        self._check_loop()
        parse_range("--prompt-tokens", self.prompt_tokens, 1)
        parse_range("--output-tokens", self.output_tokens, 2)
        parse_slo(self.slo)
        parse_extra_body(self.extra_body)
        for flag, count, low, high in (
            ("--num-requests", self.num_requests, 1, _MAX_REQUESTS),
            ("--prefix-tokens", self.prefix_tokens, 0, MAX_TOKENS),
            ("--num-prefixes", self.num_prefixes, 1, _MAX_REQUESTS),
            ("--concurrency", self.concurrency, 1, _MAX_REQUESTS),
            ("--intruder-tokens", self.intruder_tokens, 1, MAX_TOKENS),
            ("--num-intruders", self.num_intruders, 1, _MAX_REQUESTS),
        ):
            if count is not None and not low <= count <= high:
                message = f"{flag} is {count:,}; it must be from {low} to {high:,}."
                raise OptionError(message)
        if self.plot is not None and not self.plot.endswith((".png", ".svg")):
            message = f"--plot is {self.plot!r}; its name must end in .png or .svg."
            raise OptionError(message)

    def _check_loop(self) -> None:
        for flag, seconds in (
            ("--request-rate", self.request_rate),
            ("--intruder-every", self.intruder_every),
            ("--quiet-seconds", self.quiet_seconds),
            ("--timeout", self.timeout),
        ):
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                message = f"{flag} is {seconds}; it must be a number above 0."
                raise OptionError(message)
        if self.request_rate is None:
            return
        for flag, other in (
            ("--concurrency", self.concurrency),
            ("--intruder-tokens", self.intruder_tokens),
        ):
            if other is not None:
                message = f"--request-rate and {flag} exclude each other: one is an open loop, the other a closed one. Give one."
                raise OptionError(message)

    @property
    def num_streams(self) -> int:
        """Requests in flight in a closed loop."""
        return self.concurrency or DEFAULT_CONCURRENCY


def parse_range(flag: str, text: str, low: int) -> tuple[int, int]:
    """Read `128` as (128, 128) and `64-256` as (64, 256).

    Raises:
        OptionError: Names the flag.
    """
    words = [word.strip() for word in text.split("-")]
    numbers = [int(word) if word.isdecimal() and len(word) < 9 else 0 for word in words]
    if len(numbers) <= 2 and low <= numbers[0] <= numbers[-1] <= MAX_TOKENS:
        return numbers[0], numbers[-1]
    message = (
        f"{flag} is {text!r:.80}; it must be a number from {low} to {MAX_TOKENS:,}, or two with "
        f"a dash between, the smaller first: 64-256."
    )
    raise OptionError(message)


def parse_slo(text: str | None) -> dict[str, float]:
    """Read `ttft=500,itl=50` as limits in seconds by their names.

    Raises:
        OptionError: Names the part that cannot be read.
    """
    limits = {}
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition("=")
        try:
            limit_ms = float(value)
        except ValueError:
            limit_ms = math.nan
        if name not in SLO_NAMES or not (math.isfinite(limit_ms) and limit_ms > 0):
            message = f"--slo has {part!r:.80}; it must be one of {', '.join(SLO_NAMES)}, an equals sign and milliseconds: ttft=500,itl=50."
            raise OptionError(message)
        limits[name] = limit_ms / 1e3
    return limits


def parse_extra_body(text: str | None) -> Mapping[str, Any]:
    """Return the fields that are added to each request.

    Raises:
        OptionError: It is no JSON object.
    """
    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        message = f'--extra-body is {text!r:.80}; it must be a JSON object: {{"top_k": 1}}.'
        raise OptionError(message)
    return fields
