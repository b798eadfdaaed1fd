"""A server's load explained: whether it preempts, why, and the flag to change."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from nanoserve.explain.engine_flags import eight_bit_share, engine_flag
from nanoserve.explain.preemption import (
    HEADROOM,
    LoadDiagnosis,
    diagnose_load,
    fitting_as_they_grow,
)
from nanoserve.explain.serving_metrics import ServingMetrics, read_metrics
from nanoserve.explain.suggested_fix import Fix
from nanoserve.units import MIB, format_bytes

_LIMITED_BY_MEMORY = ("preempting", "preempted earlier", "pool full")


@dataclass(frozen=True, slots=True)
class LoadExplanation:
    """What a load says.

    Attributes:
        metrics: The figures.
        diagnosis: What they mean.
        fixes: What to change, the likeliest first.
    """

    metrics: ServingMetrics
    diagnosis: LoadDiagnosis
    fixes: tuple[Fix, ...]

    @property
    def exit_code(self) -> int:
        """4 where the pool limits the load, 3 where nothing is known, else 0."""
        if self.diagnosis.kind == "unknown":
            return 3
        return 4 if self.diagnosis.kind in _LIMITED_BY_MEMORY else 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "metrics": asdict(self.metrics),
            "diagnosis": asdict(self.diagnosis),
            "fixes": [asdict(fix) for fix in self.fixes],
            "exit_code": self.exit_code,
        }


def explain_load(text: str, plain: str | None = None) -> LoadExplanation | None:
    """Explain a page of metrics or a log's periodic lines; None where the text has neither.

    Args:
        text: As pasted.
        plain: The same as `log_text.plain_log` makes it, where that is at hand.
    """
    metrics = read_metrics(text, plain)
    if metrics.is_empty:
        return None
    diagnosis = diagnose_load(metrics)
    return LoadExplanation(metrics, diagnosis, _fixes(metrics, diagnosis))


def _fixes(metrics: ServingMetrics, diagnosis: LoadDiagnosis) -> tuple[Fix, ...]:
    makers = {
        "preempting": (_recommended_slots, _larger_pool, _eight_bits),
        "preempted earlier": (_larger_pool,),
        "pool full": (_larger_pool, _eight_bits, _recommended_slots),
        "slots full": (_recommended_slots, _slots_for_the_queue),
    }.get(diagnosis.kind, ())
    found = (make(metrics, diagnosis) for make in makers)
    return tuple(fix for fix in found if fix is not None)


def _recommended_slots(metrics: ServingMetrics, diagnosis: LoadDiagnosis) -> Fix | None:
    slots = diagnosis.recommended_max_num_seqs
    change = engine_flag(metrics.engine, "slots", slots)
    if not slots or change is None:
        return None
    prompt, answer, pool = metrics.mean_prompt, metrics.mean_answer, metrics.pool_tokens
    if prompt and answer and pool and slots == fitting_as_they_grow(metrics):
        together = max(1, int(pool / (prompt + answer)))
        effect = (
            f"a request has {prompt:,.0f} + {answer:,.0f} tokens on average: {slots:,} fit in "
            f"{pool:,} while each is at another point of its answer, {together:,} if all end at once"
        )
        return Fix(change, effect, 0)
    if metrics.num_running is None or not metrics.pool_usage:
        return None
    fit = metrics.num_running / metrics.pool_usage
    effect = (
        f"{metrics.num_running:,} requests hold {metrics.pool_usage:.0%} of the pool, so {fit:,.0f} "
        f"of their present length fit; {HEADROOM:.1%} of that leaves room to grow"
    )
    return Fix(change, effect, 0)


def _slots_for_the_queue(metrics: ServingMetrics, diagnosis: LoadDiagnosis) -> Fix | None:
    """Take what waits as well, where the engine does not say how much of its pool is held."""
    if metrics.pool_usage is not None or not metrics.num_waiting:
        return None
    running = metrics.num_running or 0
    change = engine_flag(metrics.engine, "slots", running + metrics.num_waiting)
    if change is None:
        return None
    share = ""
    if metrics.engine == "llama.cpp":
        share = "; the context is shared out among them: --ctx-size must grow as well"
    effect = f"{running:,} requests run and {metrics.num_waiting:,} wait for a slot{share}"
    return Fix(change, effect, 0)


def _larger_pool(metrics: ServingMetrics, diagnosis: LoadDiagnosis) -> Fix | None:
    """Give the pool what nothing was planned for, as far as all requests taken at once need.

    They are as many as there are slots; where nobody says, those that run or wait.
    """
    pool, spare = metrics.pool_bytes, metrics.spare_bytes
    each = _request_bytes(metrics)
    if not pool or not spare or not each:
        return _twice_the_pool(metrics)
    asking = metrics.max_num_seqs or (metrics.num_running or 0) + (metrics.num_waiting or 0)
    wanted = math.ceil(max(asking * each, pool) / HEADROOM / MIB)
    size = min(wanted, (pool + spare) // MIB)
    change = engine_flag(metrics.engine, "pool", size)
    if change is None or size * MIB <= pool:
        return None
    who = "requests run or wait" if metrics.max_num_seqs is None else "may run at once"
    effect = (
        f"{format_bytes(spare)} of the device are planned for nothing; {asking:,} {who}, and each "
        f"holds up to {format_bytes(round(each))}: {int(size * MIB / each):,} would fit"
    )
    return Fix(change, effect, size * MIB - pool)


def _request_bytes(metrics: ServingMetrics) -> float | None:
    """Return what a request holds at its end, or holds now where no lengths are known."""
    pool, prompt, answer = metrics.pool_bytes, metrics.mean_prompt, metrics.mean_answer
    if prompt and answer and metrics.pool_tokens and pool:
        return (prompt + answer) * pool / metrics.pool_tokens
    if not metrics.num_running or not metrics.pool_usage or not pool:
        return None
    return pool * metrics.pool_usage / metrics.num_running


def _twice_the_pool(metrics: ServingMetrics) -> Fix | None:
    """Double the pool out of what nothing was planned for, where no request runs any more."""
    pool, spare = metrics.pool_bytes, metrics.spare_bytes
    if not pool or not spare:
        return None
    size = min(2 * pool, pool + spare) // MIB
    change = engine_flag(metrics.engine, "pool", size)
    if change is None or size * MIB <= pool:
        return None
    effect = (
        f"{format_bytes(pool)} now; {format_bytes(spare)} of the device are planned for nothing"
    )
    return Fix(change, effect, size * MIB - pool)


def _eight_bits(metrics: ServingMetrics, diagnosis: LoadDiagnosis) -> Fix | None:
    """Halve what each request holds; whether it has 16 bits today, no metric says."""
    change, share = engine_flag(metrics.engine, "eight bits"), eight_bit_share(metrics.engine)
    if change is None or share is None or metrics.pool_usage is None:
        return None
    times = "twice" if 2 * share == 1 else f"{float(1 / share):.2f} times"
    tokens = ""
    if metrics.pool_tokens is not None:
        tokens = f", {math.floor(metrics.pool_tokens / share):,} tokens,"
    effect = (
        f"the pool{tokens} holds {times} as much if keys and values have 16 bits now: "
        f"{float(metrics.pool_usage * share):.0%} of it would be held"
    )
    return Fix(change, effect, 0)
