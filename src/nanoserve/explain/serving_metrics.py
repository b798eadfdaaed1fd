"""What a running server says of its load: pasted Prometheus text, or lines of its log.

Of one scrape or of several pasted one after the other. Never raises, whatever the text. How
engines call the figures is `metric_names`'; what they mean is `preemption`'s.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from nanoserve.explain.log_patterns import (
    NUMBER,
    Figure,
    count,
    find_figures,
    line_pattern,
    number,
)
from nanoserve.explain.log_text import plain_log
from nanoserve.explain.logged_boot import Findings
from nanoserve.explain.metric_names import (
    COUNTERS,
    ENGINES,
    GAUGES,
    KIND_LABELS,
    LARGEST,
    RANK_LABELS,
)

_MAX_SERIES = 10_000
_PREFIXES = tuple(ENGINES)
_PERCENT = 100.0
_CONFIG = re.compile(r"cache_config_info\{[^\n]{0,2000}")
_BLOCKS, _BLOCK_SIZE = (
    re.compile(r'num_gpu_blocks="(\d{1,12})"'),
    re.compile(r'block_size="(\d{1,6})"'),
)
_LABEL = re.compile(r'(\w{1,80})="([^"]{0,200})"')


@dataclass(frozen=True, slots=True)
class ServingMetrics:
    """A server's load. A figure nobody gave is None.

    Attributes:
        engine: `vllm`, `sglang`, `tensorrt-llm`, `llama.cpp` or `nanoserve`.
        num_preemptions: Requests sent back to wait: between the first and the last scrape
            where there are several, since the start otherwise.
        num_finished: Requests finished, over the same time.
        mean_prompt: Tokens of a request's prompt, on average since the server's start.
        mean_answer: Tokens of its whole answer, likewise.
        generation_tokens: Tokens sampled, over the same time.
        num_running: Requests that hold blocks, in the last scrape; of a log, the most seen.
        num_waiting: Requests that wait, likewise.
        pool_usage: Share of the pool that is held, 0 to 1, likewise; of several engines, the
            fullest.
        pool_tokens: Tokens that the pool holds.
        max_num_seqs: Most requests at once.
        pool_bytes: Bytes of the pool; this server says them.
        spare_bytes: Bytes of the device that nothing was planned for; likewise.
        is_between: Whether counters are of the time between two scrapes.
    """

    engine: str | None = None
    num_preemptions: int | None = None
    num_finished: int | None = None
    mean_prompt: float | None = None
    mean_answer: float | None = None
    generation_tokens: int | None = None
    num_running: int | None = None
    num_waiting: int | None = None
    pool_usage: float | None = None
    pool_tokens: int | None = None
    max_num_seqs: int | None = None
    pool_bytes: int | None = None
    spare_bytes: int | None = None
    is_between: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the text held no figure of a load."""
        return self.num_running is None and self.pool_usage is None and not self.num_preemptions


def read_metrics(text: str, plain: str | None = None) -> ServingMetrics:
    """Return what a scrape, several, or a log's periodic lines say.

    Args:
        text: Anything.
        plain: The same as `log_text.plain_log` makes it, where that is at hand.
    """
    scraped = _read_scrapes(text)
    if not scraped.is_empty:
        return scraped
    return _read_log_lines(plain_log(text).text if plain is None else plain)


def _read_scrapes(text: str) -> ServingMetrics:
    """Sum each figure over its label sets, the pool's usage apart: there the fullest counts."""
    series = _series(text)
    totals: dict[str, float] = {}
    engine = None
    for key, values in series.items():
        name, field = _field(key)
        engine = engine or next(ENGINES[one] for one in _PREFIXES if key.startswith(one))
        if field is None:
            continue
        is_counter = name in COUNTERS
        value = max(0.0, values[-1] - values[0]) if is_counter and len(values) > 1 else values[-1]
        old = totals.get(field, 0.0)
        totals[field] = max(old, value) if field in LARGEST else old + value
    some_blocks = totals.pop("some_blocks", None)  # free, used and cached ones are all
    blocks = totals.pop("num_blocks", some_blocks)
    block_size = totals.pop("block_size", None)
    pool_tokens = blocks * block_size if blocks and block_size else _configured_tokens(text)
    if pool_tokens:
        totals.setdefault("pool_tokens", pool_tokens)
    retracted = totals.pop("now_retracted", 0.0)  # where nobody counts them all
    if retracted:
        totals.setdefault("num_preemptions", retracted)
    is_between = any(len(values) > 1 for values in series.values())
    totals.pop("prompt_tokens", None)
    prompt, answer = _mean_lengths(series, totals.get("num_running", 0.0))
    metrics = _metrics(engine, totals)
    return replace(metrics, is_between=is_between, mean_prompt=prompt, mean_answer=answer)


def _mean_lengths(
    series: dict[str, list[float]], running: float
) -> tuple[float | None, float | None]:
    """Return a request's prompt and answer in tokens; None before one has finished.

    Those that run have had their prompt counted, and on average half of their answer.
    """
    sums: dict[str | None, float] = {}
    for key, values in series.items():
        name, field = _field(key)
        if name in COUNTERS:
            sums[field] = sums.get(field, 0.0) + values[-1]
    finished, prompts = sums.get("num_finished"), sums.get("prompt_tokens")
    sampled = sums.get("generation_tokens")
    if not finished or not prompts or not sampled:
        return None, None
    return prompts / (finished + running), sampled / (finished + running / 2)


def _series(text: str) -> dict[str, list[float]]:
    """Return each series' values in the order of the scrapes; none of another page."""
    series: dict[str, list[float]] = {}
    is_page = any(prefix in text for prefix in _PREFIXES)
    for line in text.splitlines() if is_page else ():
        sample = _sample(line)
        if sample is not None and (sample[0] in series or len(series) < _MAX_SERIES):
            series.setdefault(sample[0], []).append(sample[1])
    return series


def _configured_tokens(text: str) -> int | None:
    """Return the pool's tokens from the labels vLLM hangs its settings on."""
    config = _CONFIG.search(text)
    blocks = config and _BLOCKS.search(config[0])
    block_size = config and _BLOCK_SIZE.search(config[0])
    return int(blocks[1]) * int(block_size[1]) if blocks and block_size else None


def _sample(line: str) -> tuple[str, float] | None:
    """Return a sample's name with its labels, and its value; None of a rank that repeats."""
    line = line.lstrip("> \t`|")
    if not line.startswith(_PREFIXES):
        return None
    end = line.rfind("}") + 1 or line.find(" ")
    words = line[end:].split(maxsplit=1) if end > 0 else []
    value = _value(words[0]) if words else None
    if value is None or not math.isfinite(value):
        return None
    labels = _LABEL.findall(line[:end]) if "_rank=" in line else ()
    is_repeated = any(label in RANK_LABELS and rank not in ("", "0") for label, rank in labels)
    return None if is_repeated else (line[:end], value)


def _value(text: str) -> float | None:
    """Read a sample's value, `1.2e+09` too."""
    try:
        return float(text)
    except ValueError:
        return None


def _field(key: str) -> tuple[str, str | None]:
    name, _, labels = key.partition("{")
    name = name.strip()
    bare = next(name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix))
    kinds = sorted((label, of) for label, of in _LABEL.findall(labels) if label in KIND_LABELS)
    words = ",".join(f'{label}="{of}"' for label, of in kinds)
    return bare, COUNTERS.get(bare) or GAUGES.get(f"{bare}{{{words}}}" if words else bare)


_LOG_LINES = (
    line_pattern("Running: ", rf"Running: {NUMBER} req", Figure("num_running", count, "max")),
    line_pattern("Waiting: ", rf"Waiting: {NUMBER} req", Figure("num_waiting", count, "max")),
    line_pattern("Pending: ", rf"Pending: {NUMBER} req", Figure("num_waiting", count, "max")),
    line_pattern(
        "KV cache usage: ", rf"GPU KV cache usage: {NUMBER}%", Figure("percent", number, "max")
    ),
    line_pattern("GPU KV cache usage: ", rf"usage: {NUMBER}%", Figure("percent", number, "max")),
    line_pattern("#running-req: ", rf"#running-req: {NUMBER}", Figure("num_running", count, "max")),
    line_pattern("#queue-req: ", rf"#queue-req: {NUMBER}", Figure("num_waiting", count, "max")),
    line_pattern("token usage: ", rf"token usage: {NUMBER}", Figure("pool_usage", number, "max")),
    line_pattern("max_total_num_tokens=", rf"={NUMBER}", Figure("pool_tokens", count)),
    line_pattern("KV cache size:", rf"size: {NUMBER} tokens", Figure("pool_tokens", count)),
    line_pattern(
        "num_cumulative_preemption",
        rf"preemption[=:] ?{NUMBER}",
        Figure("num_preemptions", count, "max"),
    ),
)


_RETRACTED = re.compile(r"#retracted_reqs: (\d{1,6})")


def _read_log_lines(plain: str) -> ServingMetrics:
    findings = Findings()
    find_figures(plain, _LOG_LINES, findings)
    values = {name: float(value) for name, value in findings.values.items() if value is not None}
    percent = values.pop("percent", None)
    if percent is not None:
        values["pool_usage"] = percent / _PERCENT
    retractions = sum(int(number) for number in _RETRACTED.findall(plain))
    if retractions:
        values["num_preemptions"] = retractions
    is_sglang = "#running-req" in plain or "token usage:" in plain
    return _metrics(("sglang" if is_sglang else "vllm") if values else None, values)


def _metrics(engine: str | None, values: dict[str, float]) -> ServingMetrics:
    usage = values.pop("pool_usage", None)
    counts: dict[str, Any] = {
        name: int(value) for name, value in values.items() if 0 <= value < 1e15
    }
    usage = None if usage is None else min(1.0, max(0.0, usage))
    return ServingMetrics(engine=engine, pool_usage=usage, **counts)
