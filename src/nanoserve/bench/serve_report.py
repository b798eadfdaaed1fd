"""What a load measured: rates, percentiles, goodput and failures, as lines, JSON and CSV."""

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nanoserve.bench.load_generator import LoadResult
from nanoserve.bench.request_record import RequestRecord, percentile
from nanoserve.plan.text_table import table_lines

_SHOWN_ERRORS = 5


@dataclass(frozen=True)
class ServeReport:
    """What was measured.

    Attributes:
        model: As the server calls it.
        load: What was sent, in a line.
        stopping: How the server was told not to stop; '' where it could not be.
        result: Of the load.
        limits_s: Of goodput, by name; may be empty.
        first_intruder_s: When the first long prompt of an interference run came; else None.
    """

    model: str
    load: str
    stopping: str
    result: LoadResult
    limits_s: Mapping[str, float]
    first_intruder_s: float | None = None

    @cached_property
    def answered(self) -> list[RequestRecord]:
        """Records with tokens and without an error."""
        return [r for r in self.result.records if r.error is None and r.event_times_s]

    @cached_property
    def streams(self) -> list[RequestRecord]:
        """Those answered that are no intruders."""
        return [record for record in self.answered if record.kind == "stream"]

    @cached_property
    def errors(self) -> Counter[str]:
        """How often each thing went wrong."""
        return Counter(r.error for r in self.result.records if r.error is not None)

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens of answers over the whole time, prefill included."""
        return self._rate(sum(record.output_tokens for record in self.answered))

    @property
    def total_tokens_per_s(self) -> float:
        """The same with prompts."""
        return self._rate(sum(r.output_tokens + r.prompt_tokens for r in self.answered))

    @property
    def goodput_per_s(self) -> float:
        """Requests a second that kept every limit."""
        return self._rate(sum(record.meets(self.limits_s) for record in self.streams))

    def gaps_s(self, *, after_s: float = 0.0, before_s: float = float("inf")) -> list[float]:
        """Return the streams' gaps between events that end within a span of the run."""
        return [
            gap
            for record in self.streams
            for gap, end_s in zip(record.gaps_s, record.event_times_s[1:], strict=True)
            if after_s <= end_s < before_s
        ]

    def figures(self) -> dict[str, Any]:
        """Return every figure by its name; times in ms."""
        ttfts = [record.ttft_s for record in self.streams]
        gaps = self.gaps_s()
        whole = [record for record in self.streams if record.is_whole]
        figures = {
            "model": self.model,
            "load": self.load,
            "seconds": round(self.result.seconds, 4),
            "num_answered": len(self.answered),
            "num_failed": self.errors.total(),
            "num_ended_early": sum(record.ended_early for record in self.answered),
            "output_tokens": sum(record.output_tokens for record in self.answered),
            "prompt_tokens": sum(record.prompt_tokens for record in self.answered),
            "num_events": sum(len(record.event_times_s) for record in self.answered),
            "output_tokens_per_s": round(self.output_tokens_per_s, 3),
            "total_tokens_per_s": round(self.total_tokens_per_s, 3),
            "requests_per_s": round(self._rate(len(whole)), 4),
            **_percentiles("ttft", ttfts),
            **_percentiles("itl", gaps),
            **_percentiles("tpot", [record.tpot_s for record in self.streams]),
            **_percentiles("e2e", [record.e2e_s for record in whole]),
            "client_cpu_fraction": round(self._rate(self.result.client_cpu_s), 5),
            "stopping": self.stopping,
            "errors": dict(self.errors),
        }
        if self.limits_s:
            figures["goodput_per_s"] = round(self.goodput_per_s, 4)
            figures["limits_ms"] = {name: 1e3 * limit for name, limit in self.limits_s.items()}
        return figures | self._interference()

    def describe(self) -> str:
        """Return the report as lines for people."""
        f = self.figures()
        rows: list[tuple[str, ...]] = [("", "p50", "p90", "p99", "max")]
        rows += [
            (label, *(f"{f[f'{name}_{rank}_ms']:,.1f} ms" for rank in ("p50", "p90", "p99", "max")))
            for label, name in (("TTFT", "ttft"), ("ITL", "itl"), ("TPOT", "tpot"), ("e2e", "e2e"))
        ]
        lines = [
            f"{self.load}; {self.model}",
            f"output {self.output_tokens_per_s:,.1f} tokens/s, with prompts "
            f"{self.total_tokens_per_s:,.1f} tokens/s; {f['num_answered']} answers in "
            f"{self.result.seconds:.1f} s; client {100 * f['client_cpu_fraction']:.1f} % of a core",
            *table_lines(rows),
        ]
        if self.limits_s:
            kept = ", ".join(f"{name} {1e3 * limit:g} ms" for name, limit in self.limits_s.items())
            lines.append(f"goodput {self.goodput_per_s:.2f} requests/s within {kept}")
        return "\n".join([*lines, *self._interference_lines(f), *self._remarks(f)])

    def write_json(self, path: Path) -> None:
        """Write the figures and every request."""
        requests = [record.figures() for record in self.result.records]
        path.write_text(json.dumps({**self.figures(), "requests": requests}, indent=1) + "\n")

    def write_csv(self, path: Path) -> None:
        """Write one line for each request."""
        rows = [record.figures() for record in self.result.records]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def _rate(self, amount: float) -> float:
        return amount / self.result.seconds if self.result.seconds else 0.0

    def _interference(self) -> dict[str, Any]:
        start_s = self.first_intruder_s
        if start_s is None:
            return {}
        intruders = [record for record in self.answered if record.kind == "intruder"]
        quiet_s = percentile(self.gaps_s(after_s=self._settled_s(start_s), before_s=start_s), 0.99)
        disturbed_s = percentile(self.gaps_s(after_s=start_s), 0.99)
        return {
            "quiet_itl_p99_ms": round(1e3 * quiet_s, 3),
            "disturbed_itl_p99_ms": round(1e3 * disturbed_s, 3),
            "disturbed_itl_max_ms": round(1e3 * max(self.gaps_s(after_s=start_s), default=0), 3),
            "disturbed_over_quiet": round(disturbed_s / quiet_s, 3) if quiet_s else None,
            **_percentiles("intruder_ttft", [record.ttft_s for record in intruders]),
        }

    def _settled_s(self, start_s: float) -> float:
        """Return when the last stream that began before `start_s` had its first token.

        Until then streams wait for each other's prompts, which is not quiet.
        """
        firsts = (record.event_times_s[0] for record in self.streams if record.event_times_s)
        return max((first for first in firsts if first < start_s), default=0.0)

    def _interference_lines(self, f: Mapping[str, Any]) -> list[str]:
        if self.first_intruder_s is None:
            return []
        ratio = f["disturbed_over_quiet"]
        return [
            f"ITL p99 of the streams: {f['quiet_itl_p99_ms']:,.1f} ms quiet, "
            f"{f['disturbed_itl_p99_ms']:,.1f} ms beside long prompts"
            + (f" ({ratio:.1f} times)" if ratio is not None else "")
            + f"; worst {f['disturbed_itl_max_ms']:,.1f} ms",
            f"TTFT of a long prompt: {f['intruder_ttft_p50_ms']:,.1f} ms median",
        ]

    def _remarks(self, f: Mapping[str, Any]) -> list[str]:
        remarks = []
        if f["num_ended_early"]:
            how = f"told by {self.stopping}" if self.stopping else "it cannot be told not to"
            remarks.append(
                f"{f['num_ended_early']} of {f['num_answered']} answers ended early ({how}): "
                "rates of other servers do not compare."
            )
        if f["output_tokens"] > f["num_events"] > 0:
            per_event = f["output_tokens"] / f["num_events"]
            remarks.append(f"{per_event:.2f} tokens an event: ITL is the gap between events.")
        if any(record.counted_by != "usage" and record.is_whole for record in self.answered):
            remarks.append("The server counts no tokens: they were counted by what it streamed.")
        for error, count in self.errors.most_common(_SHOWN_ERRORS):
            remarks.append(f"failed {count}: {error}")
        hidden = self.errors.total() - sum(n for _, n in self.errors.most_common(_SHOWN_ERRORS))
        return [*remarks, f"failed {hidden}: in other ways; see --json"] if hidden else remarks


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        f"{name}_{rank}_ms": round(1e3 * percentile(values, fraction), 3)
        for rank, fraction in ranks.items()
    }
