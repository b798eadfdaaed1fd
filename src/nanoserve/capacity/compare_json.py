"""A comparison as plain data for `compare --json`; keys are those of `plan_json` where both have one."""

from collections.abc import Sequence
from typing import Any

from nanoserve.capacity.comparison import ComparedPlan, SavingsCompared, winners
from nanoserve.capacity.plan_json import VERSION, plan_as_dict
from nanoserve.capacity.plan_query import PlanQuery


def comparison_as_dict(
    base: PlanQuery, rows: Sequence[ComparedPlan], savings: SavingsCompared | None
) -> dict[str, Any]:
    """Return all combinations, the best of them, and which saving pays more.

    `best` is the number of a row; None where none serves. `plan` of a row is None where it was
    refused, and `refusal` says why.
    """
    best = next(winners(rows), None)
    return {
        "version": VERSION,
        "model": base.model.name,
        "engine": base.engine,
        "fits": best is not None,
        "best": None if best is None else rows.index(best),
        "savings": None if savings is None else _savings(savings),
        "rows": [_row(row) for row in rows],
    }


def _row(row: ComparedPlan) -> dict[str, Any]:
    return {
        "gpu": row.gpus.gpu.name,
        "num_gpus": row.gpus.num_gpus,
        "tensor_parallel": row.tp or None,
        "weight_format": row.weight_name,
        "kv_format": row.kv_name,
        "requests_on_all_gpus": row.requests,
        "refusal": row.refusal or None,
        "plan": None if row.plan is None else plan_as_dict(row.plan),
    }


def _savings(savings: SavingsCompared) -> dict[str, Any]:
    return {
        "tokens": max(0, savings.base.tokens.mid),
        "kv_format": savings.kv.choices.kv_format.name,
        "tokens_added_by_kv": savings.kv_gain,
        "weight_format": savings.weights.choices.weight_format.name,
        "tokens_added_by_weights": savings.weights_gain,
        "freed_bytes": savings.freed_bytes,
        "break_even_pool_bytes": savings.break_even_bytes,
        "more": savings.winner,
    }
