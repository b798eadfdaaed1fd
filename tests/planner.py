"""Queries for tests of the planner: presets on cards of the table."""

from typing import Any

from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.spec.gpu_names import find_gpus
from nanoserve.spec.read_model import read_planned_model


def query(model: str = "llama-3.1-8b", gpus: str = "h100", **changes: Any) -> PlanQuery:
    """Return the query of a preset on GPUs by name."""
    group = find_gpus(gpus)
    given: dict[str, Any] = {"gpu": group.gpu, "num_gpus": group.num_gpus} | changes
    return PlanQuery(model=read_planned_model(model), **given)


def planned(model: str = "llama-3.1-8b", gpus: str = "h100", **changes: Any) -> PlanAnswer:
    """Return the answer to `query`."""
    return answer(query(model, gpus, **changes))
