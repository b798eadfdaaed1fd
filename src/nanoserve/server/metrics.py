"""The engine's numbers in Prometheus' text format, under vLLM's names.

A page is made from one snapshot when it is asked for: nothing is kept here, so nothing
can disagree. Names: vLLM's suffixes after `nanoserve:`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from nanoserve.engine.stats import HistogramSnapshot, StatsSnapshot
from nanoserve.sched.admission import EngineLimits

METRICS_CONTENT_TYPE = CONTENT_TYPE_LATEST
_PREFIX = "nanoserve:"


def render_metrics(
    stats: StatsSnapshot,
    model_name: str,
    budget: Sequence[Mapping[str, Any]] = (),
    limits: EngineLimits | None = None,
) -> bytes:
    """Return the page of one snapshot.

    Args:
        stats: What the engine has done.
        model_name: The label of every sample.
        budget: The device's memory line by line, as the boot's payload has it.
        limits: What the engine works within, where the page is to say so.
    """
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(stats, model_name, budget, limits))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    """Hands one snapshot to a registry."""

    def __init__(
        self,
        stats: StatsSnapshot,
        model_name: str,
        budget: Sequence[Mapping[str, Any]],
        limits: EngineLimits | None,
    ) -> None:
        self._stats = stats
        self._model_name = model_name
        self._budget = budget
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield self._finished()
        yield self._decode_steps()
        yield self._memory()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        gauges = self._stats.gauges
        limits = self._limits
        used_fraction = gauges.num_used_blocks / gauges.num_blocks if gauges.num_blocks else 0.0
        for name, text, value in (
            ("num_requests_running", "Requests that hold KV blocks.", gauges.num_running),
            ("num_requests_waiting", "Requests waiting for a place.", gauges.num_waiting),
            ("kv_cache_usage_perc", "Fraction of KV blocks in use, 0 to 1.", used_fraction),
            ("num_blocks_free", "KV blocks that are unowned and empty.", gauges.num_free_blocks),
            ("num_blocks_used", "KV blocks held by a request.", gauges.num_used_blocks),
            ("num_blocks_cached", "KV blocks kept for their prefix.", gauges.num_cached_blocks),
            ("block_size", "Tokens of a KV block.", limits.block_size if limits else None),
            ("max_num_seqs", "Most running requests.", limits.max_num_seqs if limits else None),
            ("last_step_age_seconds", "Since the last step ended.", self._stats.last_step_age_s),
        ):
            if value is None:  # no step yet, or no limits given
                continue
            family = GaugeMetricFamily(_PREFIX + name, text, labels=["model_name"])
            family.add_metric([self._model_name], value)
            yield family

    def _counters(self) -> Iterator[Metric]:
        stats = self._stats
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of requests that got a token.", stats.prompt_tokens),
            ("generation_tokens", "Tokens sampled.", stats.generation_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up.", stats.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens found cached.", stats.cached_prompt_tokens),
            ("num_preemptions", "Requests sent back to wait.", stats.gauges.num_preemptions),
            ("num_steps", "Forward passes.", stats.steps.num_steps),
            ("prefill_steps", "Steps with prompt tokens.", stats.steps.num_prefill_steps),
            ("padded_rows", "Rows added to reach a shape.", stats.steps.padded_rows),
            ("graphs_evicted", "Recorded graphs dropped for another.", stats.steps.num_evicted),
            ("requests_rejected", "Requests refused at the bound in flight.", stats.num_rejected),
        ):
            family = CounterMetricFamily(_PREFIX + name, text, labels=["model_name"])
            family.add_metric([self._model_name], value)
            yield family

    def _finished(self) -> Metric:
        family = CounterMetricFamily(
            f"{_PREFIX}request_success",
            "Requests that ended, by the reason.",
            labels=["model_name", "finished_reason"],
        )
        for reason, count in self._stats.finished.items():
            family.add_metric([self._model_name, reason.value], count)
        return family

    def _decode_steps(self) -> Metric:
        family = CounterMetricFamily(
            f"{_PREFIX}decode_steps",
            "Steps of decodes alone, by how they ran.",
            labels=["model_name", "mode"],
        )
        for mode, count in self._stats.steps.num_decode_steps.items():
            family.add_metric([self._model_name, mode.value], count)
        return family

    def _memory(self) -> Metric:
        family = GaugeMetricFamily(
            f"{_PREFIX}memory_bytes",
            "The device's memory at boot, part by part; residual is measured less planned.",
            labels=["model_name", "part", "kind"],
        )
        for line in self._budget:
            for kind in ("planned", "measured", "residual"):
                num_bytes = line[f"{kind}_bytes"]
                if num_bytes is not None:  # nobody could measure it
                    family.add_metric([self._model_name, line["name"], kind], num_bytes)
        return family

    def _histograms(self) -> Iterator[Metric]:
        stats = self._stats
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Submission to first token.", stats.ttft_s),
            ("inter_token_latency_seconds", "Gap between two tokens.", stats.inter_token_s),
            ("e2e_request_latency_seconds", "Submission to end.", stats.e2e_s),
        ):
            family = HistogramMetricFamily(_PREFIX + name, text, labels=["model_name"])
            family.add_metric([self._model_name], _cumulative(histogram), histogram.sum_s)
            yield family


def _cumulative(histogram: HistogramSnapshot) -> list[tuple[str, float]]:
    """Return (upper bound, observations up to it); the last bound is +Inf."""
    labels = [*(str(bound) for bound in histogram.bounds_s), "+Inf"]
    total = 0
    buckets: list[tuple[str, float]] = []
    for label, count in zip(labels, histogram.counts, strict=True):
        total += count
        buckets.append((label, total))
    return buckets
