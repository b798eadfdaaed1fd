"""Load a running server with random prompts over HTTP and report its rates.

Prompts are random token ids, so no prefix is shared and no tokenizer is needed; answers
run to their full length. Knows only the OpenAI API, so any such server can be measured.
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx

from nanoserve.bench.openai_answers import (
    DONE,
    broken_off,
    check_url,
    first_model,
    key_headers,
    payload_of,
    read_chunk,
    refusal,
)
from nanoserve.errors import NanoserveError

_TOKEN_IDS = range(1000, 30000)  # ordinary tokens in every vocabulary we serve
_TIMEOUT = httpx.Timeout(30.0, read=600.0)


class BenchError(NanoserveError):
    """The server cannot be reached, or sent nothing to measure."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent.

    Attributes:
        concurrency: Requests in flight at once.
        num_requests: Requests in all.
        prompt_tokens: Tokens of each prompt.
        output_tokens: Tokens of each answer.
    """

    concurrency: int
    num_requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When one request's tokens came, in seconds since it was sent."""

    num_tokens: int
    event_times_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.event_times_s[0]

    @property
    def gaps_s(self) -> list[float]:
        """Gaps between events."""
        return [later - sooner for sooner, later in pairwise(self.event_times_s)]


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What was measured."""

    workload: Workload
    seconds: float
    requests: tuple[RequestTimes, ...]

    @property
    def output_tokens_per_s(self) -> float:
        """Generated tokens over the whole time, prefill included."""
        return sum(request.num_tokens for request in self.requests) / self.seconds

    def describe(self) -> str:
        """Return the report as lines for people."""
        workload = self.workload
        gaps = sorted(gap for request in self.requests for gap in request.gaps_s) or [0.0]
        ttfts = [request.ttft_s for request in self.requests]
        return "\n".join(
            [
                f"{workload.num_requests} requests, "
                f"{min(workload.concurrency, workload.num_requests)} at once, "
                f"{workload.prompt_tokens} prompt + {workload.output_tokens} output tokens each",
                f"output      {self.output_tokens_per_s:8.1f} tokens/s in {self.seconds:.1f} s",
                f"TTFT        {1e3 * statistics.median(ttfts):8.1f} ms median, "
                f"{1e3 * max(ttfts):.1f} ms worst",
                f"ITL         {1e3 * statistics.median(gaps):8.1f} ms median, "
                f"{1e3 * gaps[int(0.99 * (len(gaps) - 1))]:.1f} ms p99",
            ]
        )


def run_workload(url: str, workload: Workload) -> ServeReport:
    """Send the workload and wait for every answer.

    Raises:
        OptionError: `url` is no address.
        BenchError: The server cannot be reached.
        NotOpenAIError: It refused a request, or is another kind of server.
    """
    try:
        return asyncio.run(_run(check_url(url), workload))
    except httpx.HTTPError as error:
        message = f"No server answers at {url} ({error}). Start one with `make serve` or `nanoserve serve`, or give --url."
        raise BenchError(message) from error


async def _run(url: str, workload: Workload) -> ServeReport:
    slots = asyncio.Semaphore(workload.concurrency)
    headers = key_headers(os.environ)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, headers=headers) as client:
        model = first_model(await client.get("/v1/models"))
        started = time.perf_counter()
        times = await asyncio.gather(
            *(_one(client, slots, model, workload, seed) for seed in range(workload.num_requests))
        )
    return ServeReport(workload, time.perf_counter() - started, tuple(times))


async def _one(
    client: httpx.AsyncClient, slots: asyncio.Semaphore, model: str, workload: Workload, seed: int
) -> RequestTimes:
    body = {
        "model": model,
        "prompt": random.Random(seed).choices(_TOKEN_IDS, k=workload.prompt_tokens),
        "max_tokens": workload.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    event_times, num_tokens = [], 0
    async with slots:
        sent = time.perf_counter()
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                raise refusal(response.text)
            async for event in _events(response):
                num_tokens = _num_tokens(event, num_tokens)
                if event["choices"]:
                    event_times.append(time.perf_counter() - sent)
    if not event_times or not num_tokens:
        message = f"The server at {client.base_url} sent no token, or did not count its tokens."
        raise BenchError(message)
    return RequestTimes(num_tokens, tuple(event_times))


def _num_tokens(event: dict[str, Any], known: int) -> int:
    """Return the answer's tokens as the event counts them, or what was known before."""
    usage = event.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else known


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        payload = payload_of(line)
        if payload == DONE:
            return
        if payload:
            yield read_chunk(payload)
    raise broken_off()
