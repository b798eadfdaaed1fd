"""Load a running server with random prompts over HTTP and report its rates.

Knows only the OpenAI API, so any such server can be measured. Before the load it asks for
the model's name and finds out which fields the server takes.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from nanoserve.bench.client_key import key_headers
from nanoserve.bench.http_stream import server_address
from nanoserve.bench.load_generator import (
    Target,
    run_closed,
    run_interference,
    run_open,
)
from nanoserve.bench.load_plan import (
    PlannedRequest,
    endless_streams,
    plan_intruders,
    plan_requests,
)
from nanoserve.bench.openai_answers import check_url, first_model
from nanoserve.bench.request_record import read_record
from nanoserve.bench.serve_bench_options import ServeBenchOptions, parse_extra_body, parse_slo
from nanoserve.bench.serve_report import ServeReport
from nanoserve.bench.server_client import server_client, unreachable
from nanoserve.bench.server_failures import status_advice
from nanoserve.bench.sse_events import read_http_answer
from nanoserve.errors import NanoserveError

Progress = Callable[[], None]
_TRIAL_TOKENS = 2
_USAGE: Mapping[str, Any] = {"stream_options": {"include_usage": True}}


class BenchError(NanoserveError):
    """The server answered nothing that can be measured."""


@dataclass(frozen=True, slots=True)
class _Dialect:
    """A way to say that an answer runs to its full length.

    Attributes:
        name: What it is called in the report; '' where a server cannot be told.
        fields: Of the body.
        length_fields: Those that get the number of tokens.
    """

    name: str
    fields: Mapping[str, Any]
    length_fields: tuple[str, ...] = ("max_tokens",)


_DIALECTS = (  # the first that a server takes is used
    _Dialect("ignore_eos", {"ignore_eos": True, **_USAGE}),
    _Dialect("min_tokens", _USAGE, ("max_tokens", "min_tokens")),
    _Dialect("", _USAGE),
    _Dialect("ignore_eos", {"ignore_eos": True}),
    _Dialect("", {}),
)


def run_bench(options: ServeBenchOptions, on_end: Progress = lambda: None) -> ServeReport:
    """Send the load and wait for every answer.

    Args:
        options: What is sent.
        on_end: Called after each answer that a progress bar counts.

    Raises:
        OptionError: The URL is no address, or the length file cannot be read.
        ServerUnreachableError: No server answers.
        BenchError: No request was answered.
        NotOpenAIError: It is another kind of server, or wants a key.
    """
    url = check_url(options.url).removesuffix("/v1")
    headers = key_headers(os.environ)
    model = options.model or _ask_for_model(url)
    return asyncio.run(_run(url, headers, model, options, on_end))


def num_counted(options: ServeBenchOptions) -> int:
    """Return how many answers a progress bar counts."""
    if options.intruder_tokens is not None:
        return options.num_intruders
    return len(plan_requests(options)) if options.length_file else options.num_requests


def _ask_for_model(url: str) -> str:
    with server_client() as client:
        try:
            return first_model(client.get(f"{url}/v1/models"))
        except httpx.HTTPError as error:
            raise unreachable(url, error) from error


async def _run(
    url: str, headers: dict[str, str], model: str, options: ServeBenchOptions, on_end: Progress
) -> ServeReport:
    base = Target(server_address(url), headers, {}, (), options.timeout)
    dialect, target = await _find_dialect(base, model, options)
    intruders = plan_intruders(options)
    if intruders:
        streams = endless_streams(options)
        result = await run_interference(target, streams, options.num_streams, intruders, on_end)
    elif options.request_rate is not None:
        result = await run_open(target, plan_requests(options), on_end)
    else:
        result = await run_closed(target, plan_requests(options), options.num_streams, on_end)
    report = ServeReport(
        model,
        load_line(options),
        dialect.name,
        result,
        parse_slo(options.slo),
        intruders[0].send_at_s if intruders else None,
    )
    _refuse_nothing(report, options.url)
    return report


async def _find_dialect(
    base: Target, model: str, options: ServeBenchOptions
) -> tuple[_Dialect, Target]:
    """Return the first dialect in which the server answers a short request.

    Raises:
        BenchError: It does not answer, or in none; the message is what it said to the plainest.
    """
    prompt = plan_requests(options)[0].prompt
    trial = PlannedRequest(prompt[:8], 8, _TRIAL_TOKENS)
    extra = parse_extra_body(options.extra_body)
    for dialect in _DIALECTS:
        fields = {"model": model, "temperature": 0, "stream": True, **dialect.fields, **extra}
        target = Target(base.address, base.headers, fields, dialect.length_fields, base.timeout_s)
        answer = await target.send(trial)
        error = read_record(trial, answer, answer.sent_s).error
        if answer.problem is not None and not answer.pieces:
            message = f"The server at {options.url} does not answer: {error}. Check the address and its port."
            raise BenchError(message)
        if error is None or not error.startswith("HTTP 4"):
            return dialect, target
    http_answer = read_http_answer(answer.pieces)
    status = 400 if http_answer is None else http_answer.status
    advice = status_advice(status, has_key=bool(base.headers)) or "Check --model and --extra-body."
    error = str(error).removesuffix(".")
    message = f"The server at {options.url} refuses every request: {error}. {advice}"
    raise BenchError(message)


def load_line(options: ServeBenchOptions) -> str:
    """Return what is sent, in a line."""
    lengths = (
        f"lengths of {options.length_file}"
        if options.length_file
        else f"{options.prompt_tokens} prompt + {options.output_tokens} output tokens each"
    )
    if options.prefix_tokens:
        lengths += f", the first {options.prefix_tokens} of {options.num_prefixes} prefixes"
    if options.intruder_tokens is not None:
        return f"{options.num_streams} streams, {lengths}; {options.num_intruders} prompts of {options.intruder_tokens} tokens, one every {options.intruder_every:g} s"
    if options.request_rate is not None:
        return f"{options.num_requests} requests, {options.request_rate:g} a second ({options.arrivals}), {lengths}"
    at_once = min(options.num_streams, options.num_requests)
    return f"{options.num_requests} requests, {at_once} at once, {lengths}"


def _refuse_nothing(report: ServeReport, url: str) -> None:
    if report.answered:
        return
    error, count = report.errors.most_common(1)[0]
    error = error.removesuffix(".")
    message = f"The server at {url} answered no request; {count} of {report.errors.total()} failed so: {error}. Its log says why."
    raise BenchError(message)
