"""Whether a server preempts, why, and how many requests it should take at once.

A request that was admitted when it was short is sent back to wait once those beside it have
grown: nothing fails, and some answers take several times as long.
"""

import math
from dataclasses import dataclass
from typing import Literal

from nanoserve.explain.serving_metrics import ServingMetrics

HEADROOM = 0.925  # share of what fits that is worth admitting: lengths vary
FULL_USAGE = 0.9  # of a pool in which the next long request may not find a block

LoadKind = Literal[
    "preempting", "preempted earlier", "pool full", "slots full", "healthy", "unknown"
]


@dataclass(frozen=True, slots=True)
class LoadDiagnosis:
    """What a server's load says.

    Attributes:
        kind: Its name.
        reason: One sentence with the numbers.
        recommended_max_num_seqs: Requests to take at once; None where nothing needs changing
            or nobody can say.
        preempted_share: Preemptions for each finished request; None where unknown.
    """

    kind: LoadKind
    reason: str
    recommended_max_num_seqs: int | None = None
    preempted_share: float | None = None


def diagnose_load(metrics: ServingMetrics) -> LoadDiagnosis:
    """Say what a server's load means.

    Example: 7 preemptions with 40 requests in a pool that is 97 % full: 41 would fit at
    their present lengths, so 38 should be taken.
    """
    if metrics.is_empty or (metrics.num_running is None and metrics.num_preemptions is None):
        return LoadDiagnosis("unknown", "There is no figure of a load.")
    usage = metrics.pool_usage
    if metrics.num_preemptions:
        return _of_preemptions(metrics)
    if metrics.num_waiting and usage is not None and usage >= FULL_USAGE:
        return LoadDiagnosis(
            "pool full",
            f"{metrics.num_waiting:,} requests wait and {usage:.0%} of the pool is held: what "
            "limits is its size, and nothing is preempted yet.",
            _fitting(metrics),
        )
    if metrics.num_waiting and usage is not None:
        return LoadDiagnosis(
            "slots full",
            f"{metrics.num_waiting:,} requests wait though {usage:.0%} of the pool is held: what "
            "limits is the number of requests taken at once.",
            _fitting(metrics),
        )
    if metrics.num_waiting:
        return LoadDiagnosis(
            "slots full",
            f"{metrics.num_waiting:,} requests wait while {metrics.num_running or 0:,} run, and the "
            "page does not say how much of the pool is held: what limits may be the slots.",
        )
    return LoadDiagnosis("healthy", "No request was sent back to wait.")


def _of_preemptions(metrics: ServingMetrics) -> LoadDiagnosis:
    preemptions = metrics.num_preemptions or 0
    share = preemptions / metrics.num_finished if metrics.num_finished else None
    each = "" if share is None else f", {share:.2f} for each finished one"
    usage = metrics.pool_usage
    is_over = not metrics.is_between and not metrics.num_waiting
    if usage is not None and usage < FULL_USAGE and is_over:
        return LoadDiagnosis(
            "preempted earlier",
            f"{preemptions:,} requests were sent back to wait{each}, while now {usage:.0%} of the "
            "pool is held: look at the peak, or compare two scrapes.",
            preempted_share=share,
        )
    held = "" if usage is None else f" and {usage:.0%} of the pool is held"
    when = " between the two looks" if metrics.is_between else ""
    return LoadDiagnosis(
        "preempting",
        f"{preemptions:,} requests were sent back to wait{when}{each}{held}: more are taken than fit "
        "once they have grown.",
        _fitting(metrics),
        share,
    )


def _fitting(metrics: ServingMetrics) -> int | None:
    """Return the requests that fit with headroom: at their lengths now, or as they will grow."""
    fits = (_fitting_now(metrics), fitting_as_they_grow(metrics))
    return min((fit for fit in fits if fit is not None), default=None)


def _fitting_now(metrics: ServingMetrics) -> int | None:
    """Return the requests that fit at the lengths they have now, with headroom."""
    if not metrics.num_running or not metrics.pool_usage:
        return None
    return max(1, math.floor(HEADROOM * metrics.num_running / metrics.pool_usage))


def fitting_as_they_grow(metrics: ServingMetrics) -> int | None:
    """Return the requests whose blocks fit while each is at another point of its answer.

    n requests of a prompt p and an answer g, each anywhere in its answer, hold n (p + g / 2)
    tokens, give or take g sqrt(n / 12); two such spreads are left free.
    """
    prompt, answer, pool = metrics.mean_prompt, metrics.mean_answer, metrics.pool_tokens
    if not prompt or not answer or not pool:
        return None
    # n m + 2 g sqrt(n / 12) = pool, solved for sqrt(n), with m = p + g / 2
    mean, spread = prompt + answer / 2, answer / math.sqrt(3)
    root = (math.sqrt(spread**2 + 4 * mean * pool) - spread) / (2 * mean)
    return max(1, math.floor(root**2))
