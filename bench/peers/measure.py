"""What is measured of a server: rates, first tokens, interference, prefixes, memory.

Everything goes through the socket with the client of `nanoserve bench serve`. A figure that
could not be taken is an error beside the others, never a reason to lose them.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bench.peers.peers import Peer, ServerShape
from bench.peers.server_process import ServerFailedError, ServerProcess, machine_cpu_s

from nanoserve.bench.serve_bench_options import ServeBenchOptions
from nanoserve.bench.serve_report import ServeReport
from nanoserve.bench.servebench import run_bench
from nanoserve.errors import NanoserveError

RATES_SHAPE = ServerShape(max_num_seqs=32, max_model_len=512)
LONG_SHAPE = ServerShape(max_num_seqs=9, max_model_len=2048)
START_PROMPT = [504, 3575, 282, 4649, 314]
START_TEXT = "The capital of France is"
START_TIMEOUT_S = 240.0  # the slowest takes 80 to 100 s
_LENGTHS = "128"
_TTFT_PROMPT, _NUM_TTFTS = 512, 5
_PREFIX, _TAIL, _NUM_PREFIXES = 1500, 16, 3
_RUNNERS, _RUNNER_TOKENS = 8, 1900  # more than a run lasts: no stream's prompt disturbs others
_INTRUDER_TOKENS, _INTRUDER_EVERY_S, _NUM_INTRUDERS, _QUIET_S = 2000, 4.0, 4, 6.0

_QUIET_FRACTION, _MAX_ATTEMPTS = 0.1, 2  # of a core that other processes may take meanwhile
_REQUEST_TIMEOUT_S = 240.0  # streams beside long prompts last for all of them, 40 s each in one
_IDLE_S = 20.0  # that a server has to become idle before a load is taken again

Figures = dict[str, Any]


def start_prompt(peer: Peer) -> list[int] | str:
    """Return a short prompt in the form that a peer takes."""
    return START_TEXT if peer.prompt_format == "text" else START_PROMPT


def is_open(figures: Figures, name: str) -> bool:
    """Return whether a group is still to be measured: it is not there, or it is an error."""
    return "error" in figures.get(name, {"error": ""})


def rate_groups(levels: Sequence[int]) -> list[str]:
    """Return the groups that `Measurement.rates` adds."""
    return ["warm-up", *(f"c={level}" for level in levels), "memory"]


def long_groups(peer: Peer) -> list[str]:
    """Return the groups that `Measurement.long_prompts` adds."""
    return ["ttft_512", "prefix", *(["interference"] if peer.has_interference else [])]


class Measurement:
    """Adds to the figures of one peer in one round.

    A load that fails is an error in its group, unless the group has figures of an earlier
    attempt. Each method raises `ServerFailedError` as soon as a load failed and the server
    answers nothing any more: the loads after it would only wait for their time to run out.
    """

    def __init__(
        self,
        peer: Peer,
        server: ServerProcess,
        seed: int,
        figures: Figures,
        on_group: Callable[[str], None],
    ) -> None:
        self._options = ServeBenchOptions(
            url=server.url,
            prompt_format="text" if peer.prompt_format == "text" else "ids",
            extra_body=peer.extra_body,
            timeout=_REQUEST_TIMEOUT_S,
        )
        self._peer = peer
        self._server = server
        self._seed = 1000 * seed
        self._figures = figures
        self._on_group = on_group

    def rates(self, levels: Sequence[int]) -> None:
        """Add output tokens/s and gaps at each concurrency, after a warm-up; then memory."""
        warm_up = {"num_requests": 2, "concurrency": 2, "output_tokens": "16"}
        self._add("warm-up", self._taken(lambda report: {}, **warm_up))
        for level in levels:
            load = {
                "concurrency": level,
                "num_requests": level if level > 1 else 2,
                "prompt_tokens": _LENGTHS,
                "output_tokens": _LENGTHS,
            }
            self._add(f"c={level}", self._taken(_rate_figures, **load))
        self._add("memory", {"peak_rss_mib": self._server.peak_rss_bytes() / 2**20})

    def long_prompts(self) -> None:
        """Add first tokens, cached prefixes and, where a peer has it, interference."""
        self._add("ttft_512", self._taken(_ttft_figures, **_TTFT_LOAD))
        self._add("prefix", self._prefix())
        if self._peer.has_interference:
            self._add("interference", self._taken(_interference_figures, **_INTERFERENCE_LOAD))

    def _prefix(self) -> Figures:
        """Return the medians of several prefixes; the error of the first that failed."""
        pairs: list[Figures] = []
        for _ in range(_NUM_PREFIXES):
            pairs.append(self._taken(_prefix_figures, **_PREFIX_LOAD))
            if "error" in pairs[-1]:
                return pairs[-1]
        return {name: statistics.median(pair[name] for pair in pairs) for name in pairs[0]}

    def _add(self, name: str, figures: Figures) -> None:
        has_failed = "error" in figures
        if not has_failed or is_open(self._figures, name):
            self._figures[name] = figures
        self._on_group(name)
        if has_failed and not self._server.is_answering(start_prompt(self._peer)):
            message = f"no answer any more after {name} failed: {figures['error']}"
            raise ServerFailedError(message)

    def _taken(self, read: Callable[[ServeReport], Figures], **load: Any) -> Figures:
        """Measure, and once more where something else disturbed; return the quieter figures."""
        attempts: list[Figures] = []
        while len(attempts) < _MAX_ATTEMPTS:
            attempts.append(self._attempt(read, load))
            if "error" in attempts[-1] or attempts[-1]["others_cpu_fraction"] <= _QUIET_FRACTION:
                break
            if not self._server.is_idle_within(_IDLE_S):
                break  # it goes on with streams whose client has left
        return min(attempts, key=lambda taken: ("error" in taken, taken["others_cpu_fraction"]))

    def _attempt(self, read: Callable[[ServeReport], Figures], load: Figures) -> Figures:
        self._seed += 1
        start_s, before_s = time.perf_counter(), self._others_cpu_s()
        figures = self._figures_of(read, load)
        others_s = max(0.0, self._others_cpu_s() - before_s)  # three clocks of some 10 ms each
        return figures | {"others_cpu_fraction": others_s / (time.perf_counter() - start_s)}

    def _figures_of(self, read: Callable[[ServeReport], Figures], load: Figures) -> Figures:
        """Return what was read; only the error where one request failed: it distorts a rate."""
        try:
            report = run_bench(replace(self._options, seed=self._seed, **load))
            for error, count in report.errors.most_common(1):
                return {"error": f"{count} of {len(report.result.records)}: {error}"}
            return read(report)
        except (NanoserveError, OSError, ValueError) as error:
            return {"error": str(error)}

    def _others_cpu_s(self) -> float:
        """Return the processor time of everything but the server and this client."""
        return machine_cpu_s() - self._server.cpu_s() - time.process_time()


_TTFT_LOAD = {
    "concurrency": 1,
    "num_requests": _NUM_TTFTS,
    "prompt_tokens": str(_TTFT_PROMPT),
    "output_tokens": "2",
}
_PREFIX_LOAD = {
    "concurrency": 1,
    "num_requests": 2,
    "prompt_tokens": str(_PREFIX + _TAIL),
    "prefix_tokens": _PREFIX,
    "output_tokens": "2",
}
_INTERFERENCE_LOAD = {
    "concurrency": _RUNNERS,
    "output_tokens": str(_RUNNER_TOKENS),
    "intruder_tokens": _INTRUDER_TOKENS,
    "intruder_every": _INTRUDER_EVERY_S,
    "num_intruders": _NUM_INTRUDERS,
    "quiet_seconds": _QUIET_S,
}


def _rate_figures(report: ServeReport) -> Figures:
    figures = report.figures()
    names = ("output_tokens_per_s", "itl_p50_ms", "itl_p99_ms", "ttft_p50_ms", "num_ended_early")
    return {name: figures[name] for name in (*names, "client_cpu_fraction")}


def _ttft_figures(report: ServeReport) -> Figures:
    return {"ttft_ms": report.figures()["ttft_p50_ms"]}


def _interference_figures(report: ServeReport) -> Figures:
    figures = report.figures()
    names = ("quiet_itl_p99_ms", "disturbed_itl_p99_ms", "disturbed_itl_max_ms")
    if not figures["quiet_itl_p99_ms"]:
        message = "no stream had a second token before the first long prompt came"
        raise ValueError(message)
    return {name: figures[name] for name in (*names, "intruder_ttft_p50_ms")}


def _prefix_figures(report: ServeReport) -> Figures:
    cold, cached = report.streams
    return {"cold_ms": 1e3 * cold.ttft_s, "cached_ms": 1e3 * cached.ttft_s}
