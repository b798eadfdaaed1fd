"""Whether a plan loads and serves, and why in a sentence. Owns what counts as serving."""

from collections.abc import Sequence
from typing import Literal

from nanoserve.capacity.budget_line import StageBudget
from nanoserve.capacity.plan_choices import PlanChoices
from nanoserve.capacity.pool_capacity import WorkloadFit
from nanoserve.units import format_bytes

Verdict = Literal["does not load", "loads, cannot serve", "serves"]

LEAST_REQUESTS = 4  # of the workload at once; under it a server queues whoever comes


def judge(
    choices: PlanChoices,
    stages: Sequence[StageBudget],
    stage: StageBudget,
    max_model_len: int,
    fit: WorkloadFit,
) -> tuple[Verdict, str]:
    """Return the verdict, and why in a sentence with numbers.

    Args:
        choices: What the query was resolved to.
        stages: Each pipeline stage's GPU.
        stage: The one that decides.
        max_model_len: Longest request that is planned.
        fit: Requests of the workload at once.
    """
    heaviest = max(stages, key=lambda stage: stage.weights.weight_bytes.mid - stage.usable_bytes)
    weights, usable = heaviest.weights.weight_bytes.mid, heaviest.usable_bytes
    if weights > usable:
        return "does not load", (
            f"the weights take {format_bytes(weights)} of each GPU and the engine may hold "
            f"{format_bytes(usable)}"
        )
    if not stage.is_loadable:
        return "does not load", f"the server refuses to start so: {stage.refusal}"
    if stage.pool.mid <= 0:
        return "loads, cannot serve", (
            f"the weights fit, and what the largest step takes leaves "
            f"{format_bytes(stage.pool.mid)} for the KV pool"
        )
    if stage.refusal and stage.is_reserved:
        return "loads, cannot serve", f"the server refuses to start so: {stage.refusal}"
    if not stage.cost.is_free and stage.cost.concurrency(stage.pool.mid, max_model_len).value < 1:
        need = stage.cost.request_bytes(max_model_len)
        return "loads, cannot serve", (
            f"one request of {max_model_len:,} tokens takes {format_bytes(need)} and the pool "
            f"has {format_bytes(stage.pool.mid)}"
        )
    length = choices.workload.p95
    if length > max_model_len:
        return "loads, cannot serve", (
            f"the workload's {length:,} tokens are past the longest request, {max_model_len:,}"
        )
    slots, fitting = choices.max_num_seqs, fit.p95.mid
    if fitting < min(LEAST_REQUESTS, slots if stage.is_reserved else LEAST_REQUESTS):
        return "loads, cannot serve", (
            f"{fitting:,} requests of {length:,} tokens fit at once, fewer than {LEAST_REQUESTS}"
        )
    return "serves", _served(slots, fitting, length)


def _served(slots: int, fitting: int, length: int) -> str:
    """Return how many requests are served at once: no more than the engine has slots."""
    if fitting <= slots:
        return f"{fitting:,} requests of {length:,} tokens fit at once"
    return (
        f"{slots:,} requests of {length:,} tokens run at once, the slots of --max-num-seqs; "
        f"{fitting:,} fit, so it may be raised"
    )
