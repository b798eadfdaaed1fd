"""`plan_chart`: pictures show the plan's own figures."""

from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_chart import fit_by_length, missing_bytes, stack_parts
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.spec.gpu_names import find_gpu
from nanoserve.spec.read_model import read_planned_model


def planned(model: str, gpu: str = "h100") -> PlanAnswer:
    return answer(PlanQuery(model=read_planned_model(model), gpu=find_gpu(gpu)))


def test_the_stack_is_the_card() -> None:
    """The parts, the pool last, sum to the GPU's memory to the byte."""
    plan = planned("llama-3.1-8b")
    parts = stack_parts(plan)

    assert sum(part.num_bytes for part in parts) == plan.stage.total_bytes
    assert (parts[0].name, parts[-1].name) == ("kept back", "KV pool")
    assert all(part.low <= part.num_bytes <= part.high for part in parts)
    assert missing_bytes(plan) == 0


def test_what_does_not_fit_stands_above_the_card() -> None:
    """A pool below nothing is no part: the others are larger than the card by what is missing."""
    plan = planned("llama-3.1-70b")
    parts = stack_parts(plan)

    assert parts[-1].num_bytes == 0
    total = sum(part.num_bytes for part in parts)
    assert total == plan.stage.total_bytes + missing_bytes(plan)
    assert fit_by_length(plan) == ()


def test_longer_requests_are_fewer() -> None:
    """The curve falls, ends at the longest length, and has the workload's figure on it."""
    plan = planned("llama-3.1-8b")
    fits = fit_by_length(plan)

    assert [fit.tokens for fit in fits] == sorted({fit.tokens for fit in fits})
    assert fits[-1].tokens == plan.max_model_len
    assert [fit.mid for fit in fits] == sorted((fit.mid for fit in fits), reverse=True)
    assert all(fit.low <= fit.mid <= fit.high for fit in fits)
    assert next(fit for fit in fits if fit.tokens == 8192).mid == plan.fit.p95.mid
