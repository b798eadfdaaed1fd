"""How many GPUs one copy of a service may take, and how a query asks for them, by engine."""

from dataclasses import replace

from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.plan.sharding import valid_tp


def gpu_counts(query: PlanQuery, most: int) -> tuple[int, ...]:
    """Return the numbers of GPUs that may share the layers of a stage, or all layers.

    Our own server has one; llama.cpp gives whole layers to as many as there are layers; the
    others divide each layer.
    """
    if query.profile.engine == "nanoserve":
        return (1,)
    if query.splits_layers:
        return tuple(range(1, min(most, len(query.model.shape.layers)) + 1))
    return valid_tp(query.model.shape, most)


def spread_over(query: PlanQuery, count: int) -> PlanQuery:
    """Return the query of one copy on so many of `gpu_counts`."""
    if query.splits_layers:
        return replace(query, num_gpus=count, tp=None, pp=count)
    return replace(query, num_gpus=count * query.pp, tp=count)


def gpu_words(query: PlanQuery) -> str:
    """Return the planner's flags for the GPUs of a query."""
    if not query.splits_layers:
        return f"--num-gpus {query.num_gpus} --tp {query.ranks}"
    copies = f" --pp {query.num_stages}" if query.num_replicas > 1 else ""
    return f"--num-gpus {query.num_gpus}{copies}"
