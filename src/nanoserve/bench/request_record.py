"""What one request of a load came to: its tokens, their times, or why it failed.

Counts tokens as the server does (`usage`), else by log-probabilities, else by events: one
event may bring several tokens, and one without text may bring one too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from nanoserve.bench.http_stream import RawAnswer
from nanoserve.bench.load_plan import Kind, PlannedRequest
from nanoserve.bench.openai_answers import NotOpenAIError, read_chunk, said
from nanoserve.bench.serve_bench_options import SLO_NAMES
from nanoserve.bench.sse_events import HttpAnswer, StreamEvent, read_http_answer

_OK = 200

CountedBy = Literal["usage", "logprobs", "events"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, times in seconds since the load began.

    Attributes:
        kind: Stream or intruder.
        prompt_tokens: As the server counted them, else as planned.
        asked_tokens: Wanted of the answer.
        output_tokens: That came.
        sent_s: When it was due in an open loop, else when it was sent.
        event_times_s: Of each event that brought tokens.
        end_s: When the last byte came.
        finish_reason: As the server said it; None where it did not.
        counted_by: What the number of output tokens rests on.
        is_cut: Cut by the client, because the run was over.
        error: Why it failed; None where it did not.
    """

    kind: Kind
    prompt_tokens: int
    asked_tokens: int
    output_tokens: int
    sent_s: float
    event_times_s: tuple[float, ...]
    end_s: float
    finish_reason: str | None = None
    counted_by: CountedBy = "events"
    is_cut: bool = False
    error: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the answer came to its end."""
        return self.error is None and not self.is_cut

    @property
    def ended_early(self) -> bool:
        """Whether a whole answer is shorter than it was asked to be."""
        return self.is_whole and self.output_tokens < self.asked_tokens

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.event_times_s[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        """From sending to the last token."""
        return self.event_times_s[-1] - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Mean time of a token after the first; 0 where there is none."""
        later_s = self.event_times_s[-1] - self.event_times_s[0]
        return later_s / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def gaps_s(self) -> list[float]:
        """Gaps between events that brought tokens: how long a reader waits."""
        return [later - sooner for sooner, later in pairwise(self.event_times_s)]

    def meets(self, limits_s: Mapping[str, float]) -> bool:
        """Whether a whole answer kept every limit, given in seconds by its name."""
        if not self.is_whole:
            return False
        measured = (self.ttft_s, self.tpot_s, percentile(self.gaps_s, 0.99), self.e2e_s)
        return all(
            value <= limits_s.get(name, value)
            for name, value in zip(SLO_NAMES, measured, strict=True)
        )

    def figures(self) -> dict[str, Any]:
        """Return every figure by its name, as files have them."""
        has_tokens = bool(self.event_times_s)
        return {
            "kind": self.kind,
            "sent_s": round(self.sent_s, 6),
            "prompt_tokens": self.prompt_tokens,
            "asked_tokens": self.asked_tokens,
            "output_tokens": self.output_tokens,
            "num_events": len(self.event_times_s),
            "ttft_ms": _ms(self.ttft_s) if has_tokens else None,
            "tpot_ms": _ms(self.tpot_s) if has_tokens else None,
            "itl_p99_ms": _ms(percentile(self.gaps_s, 0.99)) if has_tokens else None,
            "e2e_ms": _ms(self.e2e_s) if has_tokens else None,
            "finish_reason": self.finish_reason,
            "counted_by": self.counted_by,
            "is_cut": self.is_cut,
            "error": self.error,
        }


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the nearest-rank percentile; 0 of nothing."""
    return sorted(values)[round(fraction * (len(values) - 1))] if values else 0.0


def read_record(
    planned: PlannedRequest, answer: RawAnswer, started_s: float, *, is_cut: bool = False
) -> RequestRecord:
    """Read what came back for a planned request.

    Args:
        planned: What was sent.
        answer: What came.
        started_s: `perf_counter` at the start of the load.
        is_cut: Whether the client no longer wanted the rest.
    """
    due_s = answer.sent_s if planned.send_at_s is None else started_s + planned.send_at_s
    end_s = answer.pieces[-1][0] if answer.pieces else answer.sent_s
    record = RequestRecord(
        planned.kind,
        planned.prompt_tokens,
        planned.output_tokens,
        0,
        due_s - started_s,
        (),
        end_s - started_s,
        is_cut=is_cut,
    )
    http_answer = read_http_answer(answer.pieces)
    if http_answer is not None and http_answer.status == _OK:
        record = _with_events(record, http_answer.events, started_s)
    error = record.error or (None if is_cut else _problem(answer, http_answer, record))
    return replace(record, error=error)


def _problem(
    answer: RawAnswer, http_answer: HttpAnswer | None, record: RequestRecord
) -> str | None:
    if answer.problem is not None:
        return answer.problem
    if http_answer is None:
        return "no HTTP response" if answer.pieces else "connection closed without an answer"
    if http_answer.status != _OK:
        body = http_answer.body.decode(errors="replace")
        return f"HTTP {http_answer.status}: {said(body)}"
    if not http_answer.is_done and record.finish_reason is None:  # some servers send no [DONE]
        return "the stream broke off before its end"
    return None if record.event_times_s else "an answer without tokens"


def _with_events(
    record: RequestRecord, events: Sequence[StreamEvent], started_s: float
) -> RequestRecord:
    times: list[float] = []
    usage: Mapping[str, Any] = {}
    num_logprobs, finish_reason, error = 0, None, None
    for event in events:
        try:
            chunk = read_chunk(event.payload)
        except NotOpenAIError as problem:
            error = f"malformed or failed stream: {problem}"
            break
        usage = _usage_of(chunk) or usage
        choice = chunk["choices"][0] if chunk["choices"] else None
        if choice is None:
            continue
        reason = choice.get("finish_reason")
        finish_reason = reason if isinstance(reason, str) else finish_reason
        num_logprobs += _num_logprobs(choice)
        if _brings_token(choice):
            times.append(event.time_s - started_s)
    counted_by: CountedBy = "events"
    output_tokens = len(times)
    if num_logprobs:
        counted_by, output_tokens = "logprobs", num_logprobs
    if (count := _count(usage, "completion_tokens")) is not None:
        counted_by, output_tokens = "usage", count
    prompt_tokens = _count(usage, "prompt_tokens")
    return replace(
        record,
        prompt_tokens=record.prompt_tokens if prompt_tokens is None else prompt_tokens,
        output_tokens=output_tokens,
        event_times_s=tuple(times),
        finish_reason=finish_reason,
        counted_by=counted_by,
        error=error,
    )


def _usage_of(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    usage = chunk.get("usage")
    return usage if isinstance(usage, dict) else {}


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    """Return how many tokens a server says there were; None where it says no such thing."""
    count = usage.get(name)
    return count if type(count) is int and count >= 0 else None


def _num_logprobs(choice: Mapping[str, Any]) -> int:
    """Return for how many tokens a chunk has log-probabilities."""
    logprobs = choice.get("logprobs")
    tokens = logprobs.get("tokens") if isinstance(logprobs, dict) else None
    return len(tokens) if isinstance(tokens, list) else 0


def _brings_token(choice: Mapping[str, Any]) -> bool:
    """Whether a chunk stands for a token; one that only ends the answer does not.

    A token whose characters are not whole yet comes with an empty text and no finish_reason.
    """
    if choice.get("text") or _num_logprobs(choice):
        return True
    return choice.get("finish_reason") is None and choice.get("text") is not None


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
