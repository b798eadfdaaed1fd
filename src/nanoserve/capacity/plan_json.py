"""A plan as plain data for `--json`: bytes as integers, seconds as floats, ranges as triples."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nanoserve.capacity.draft_layers import draft_layers
from nanoserve.capacity.interval import Interval
from nanoserve.capacity.plan_answer import PlanAnswer
from nanoserve.capacity.plan_formulas import plan_formulas
from nanoserve.capacity.plan_search import SearchAnswer, served_users
from nanoserve.capacity.remedies import Remedy
from nanoserve.capacity.speed_bounds import DecodeFloor
from nanoserve.plan.formula import Formula

VERSION = 1  # of the layout; raised where a key changes its meaning


def plan_as_dict(plan: PlanAnswer) -> dict[str, Any]:
    """Return everything the plan says, ready for `json.dumps`.

    `capacity` and `speed` are None where nothing is left for a pool, `command` where the engine
    would not start, `load_peak_bytes` where loading takes nothing beside the weights, or nobody
    knows what.
    """
    query, choices = plan.query, plan.choices
    return {
        "version": VERSION,
        "model": query.model.name,
        "gpu": query.gpu.name,
        "num_gpus": query.num_gpus,
        "tensor_parallel": choices.tp,
        "pipeline_parallel": choices.pp,
        "num_replicas": query.num_replicas,
        "engine": query.engine,
        "weight_format": choices.weight_format.name,
        "kv_format": choices.kv_format.name,
        "gpu_memory_utilization": plan.utilization,
        "verdict": plan.verdict,
        "fits": plan.fits,
        "reason": plan.reason,
        "parameters": plan.num_params,
        "active_parameters": plan.num_active_params,
        "draft_layers": _draft_layers(plan),
        "memory": _memory(plan),
        "kv": _kv(plan),
        "capacity": _capacity(plan) if plan.has_pool else None,
        "speed": _speed(plan) if plan.has_pool else None,
        "command": plan.command,
        "notes": list(plan.notes),
        "formulas": [_formula(one) for one in plan_formulas(plan)],
    }


def remedies_as_list(found: Sequence[Remedy]) -> list[dict[str, Any]]:
    """Return each change with what it does."""
    return [
        {
            "flags": remedy.words,
            "price": remedy.price,
            "pool_delta_bytes": remedy.pool_delta,
            "pool_bytes": _triple(remedy.plan.pool),
            "requests_of_p95": _triple(remedy.plan.fit.p95),
            "command": remedy.plan.command,
        }
        for remedy in found
    ]


def search_as_dict(search: SearchAnswer) -> dict[str, Any]:
    """Return what was looked for, every candidate, and the plan of the one that was found."""
    best = search.best
    return {
        "version": VERSION,
        "find": search.wanted,
        "users": search.users,
        "found": None if best is None else best.figure,
        "flags": None if best is None else best.words,
        "command": search.command,
        "plan": None if best is None else plan_as_dict(best.plan),
        "candidates": [
            {
                "flags": one.words,
                "users": served_users(one.plan),
                "longest_that_fits": one.plan.longest_fit,
                "pool_bytes": _triple(one.plan.pool),
                "verdict": one.plan.verdict,
                "is_enough": one.is_enough,
            }
            for one in search.candidates
        ],
    }


def _memory(plan: PlanAnswer) -> dict[str, Any]:
    weights, peak = plan.stage.weights, plan.stage.load_peak
    return {
        "total_bytes": plan.stage.total_bytes,
        "stage": plan.binding,
        "num_stages": len(plan.stages),
        "first_layer": weights.first_layer,
        "num_layers": weights.num_layers,
        "parts": [
            {"name": line.name, "is_inside": line.is_inside, "bytes": _triple(line.size)}
            for line in plan.lines
        ],
        "pool_bytes": _triple(plan.pool),
        "load_peak_bytes": None if peak is None else peak.value,
    }


def _draft_layers(plan: PlanAnswer) -> dict[str, Any] | None:
    """Return the layers that guess ahead, which no other figure counts; None without any."""
    drafts = draft_layers(plan.query, plan.choices)
    return None if drafts is None else asdict(drafts)


def _kv(plan: PlanAnswer) -> dict[str, Any]:
    facts = plan.kv_facts
    return {
        "bytes_per_token": facts.token_bytes,
        "bytes_per_token_in_windows": facts.window_bytes,
        "state_bytes_per_request": facts.state_bytes,
        "request_bytes_at_max_model_len": plan.stage.cost.request_bytes(plan.max_model_len),
    }


def _capacity(plan: PlanAnswer) -> dict[str, Any]:
    workload = plan.choices.workload
    return {
        "max_model_len": plan.max_model_len,
        "longest_that_fits": plan.longest_fit,
        "tokens": _triple(plan.tokens),
        "concurrency_at_max_model_len": plan.concurrency,
        "workload": {
            "source": workload.source,
            "mean_tokens": workload.mean,
            "p50_tokens": workload.p50,
            "p95_tokens": workload.p95,
        },
        "requests_of_mean": _triple(plan.fit.mean),
        "requests_of_p95": _triple(plan.fit.p95),
        "recommended_max_num_seqs": plan.fit.max_num_seqs,
        "sized_for_max_num_seqs": plan.choices.max_num_seqs,
        "max_num_batched_tokens": plan.choices.max_num_batched_tokens,
    }


def _speed(plan: PlanAnswer) -> dict[str, Any]:
    return {
        "about": "bounds from bandwidth and arithmetic alone; no engine is faster",
        "decode": [_floor(floor) for floor in plan.decode],
        "prefill": {
            "prompt_tokens": plan.prefill.prompt,
            "seconds": plan.prefill.seconds,
            "precision": plan.prefill.precision,
        },
    }


def _floor(floor: DecodeFloor) -> dict[str, Any]:
    return {
        "batch": floor.batch,
        "context_tokens": floor.context,
        "seconds": floor.seconds,
        "tokens_per_second": floor.tokens_per_second,
    }


def _formula(formula: Formula) -> dict[str, Any]:
    return {
        "name": formula.name,
        "expression": formula.expression,
        "substituted": formula.substituted,
        "value": formula.value,
        "unit": formula.unit,
    }


def _triple(size: Interval) -> dict[str, int]:
    return {"low": size.low, "likely": size.mid, "high": size.high}
