"""What a first start of our own server takes for a moment is shown, and asked for."""

from dataclasses import replace
from typing import Any

import pytest

from nanoserve.capacity.own_formats import find_own_format
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_formulas import formula_lines, plan_formulas
from nanoserve.capacity.plan_json import plan_as_dict
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.capacity.plan_table import plan_lines
from nanoserve.capacity.remedies import remedies
from nanoserve.plan.formula import evaluate
from nanoserve.plan.load_peak import LOAD_PEAK
from nanoserve.spec.gpu_spec import custom_gpu
from nanoserve.spec.read_model import read_planned_model
from nanoserve.units import GIB, MIB, format_bytes
from tests.planner import planned

SMALLEST: dict[str, Any] = {
    "max_num_seqs": 1,
    "max_model_len": 16,
    "max_num_batched_tokens": 16,
    "is_eager": True,
}


def on_cpu(
    memory_bytes: int,
    *host_has: str,
    quantization: str = "none",
    **changes: Any,
) -> PlanAnswer:
    """Plan SmolLM2 under our own server on a machine of so much memory."""
    gpu = replace(
        custom_gpu(memory_bytes, bandwidth_gbps=30),
        compute_capability="host",
        host_has=frozenset(host_has),
    )
    query = PlanQuery(
        model=read_planned_model("smollm2"),
        gpu=gpu,
        engine="nanoserve",
        weight_format=find_own_format(quantization),
    )
    return answer(replace(query, **changes))


def peak_rows(plan: PlanAnswer) -> list[str]:
    return [line for line in plan_lines(plan) if LOAD_PEAK in line]


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_what_packing_takes_is_shown_with_its_formula(quantization: str) -> None:
    """Below the pool, in the formulas and in JSON; it comes to what the formula says."""
    plan = on_cpu(8 * GIB, "bf16", "native", quantization=quantization)
    peak = plan.stage.load_peak

    assert peak is not None
    weight_bytes = peak.symbols["weights"]
    assert weight_bytes + 16 * MIB <= peak.value <= weight_bytes + 32 * MIB
    (row,) = peak_rows(plan)
    assert row.split() == [*f"({LOAD_PEAK})".split(), f"{peak.value / GIB:.2f}"]
    assert plan_as_dict(plan)["memory"]["load_peak_bytes"] == peak.value
    assert peak in plan_formulas(plan)
    assert evaluate(peak.substituted) == peak.value
    assert LOAD_PEAK in formula_lines(plan)
    assert ("measuring" in peak.symbols) == (quantization == "int4")


def test_where_nothing_is_packed_there_is_nothing_to_show() -> None:
    """On a GPU, without native operators, and of other engines."""
    plans = [
        planned("llama-3.2-1b", "rtx 4090", engine="nanoserve"),
        on_cpu(8 * GIB, "bf16"),
        planned("llama-3.2-1b", "rtx 4090", engine="vllm"),
    ]

    for plan in plans:
        assert plan.stage.load_peak is None
        assert plan_as_dict(plan)["memory"]["load_peak_bytes"] is None
        assert peak_rows(plan) == []


def test_weights_that_do_not_fit_while_they_load_do_not_load() -> None:
    """The server's own words, with the peak that is shown; a machine with as much serves."""
    roomy = on_cpu(8 * GIB, "bf16", "native", **SMALLEST)
    peak = roomy.stage.load_peak
    assert peak is not None
    held = next(line.size.mid for line in roomy.lines if line.name == "this process at start")
    least_bytes = held + int(peak.value)

    plan = on_cpu(least_bytes - 1, "bf16", "native", **SMALLEST)

    assert plan.verdict == "does not load"
    assert "while they load: packing takes" in plan.reason
    assert f"It needs {format_bytes(int(peak.value))}" in plan.reason
    assert plan.command is None
    assert len(peak_rows(plan)) == 1
    assert next(remedy.words for remedy in remedies(plan)) == "--quantization int8"
    assert on_cpu(least_bytes, "bf16", "native", **SMALLEST).command is not None


def test_weights_that_are_more_than_is_free_do_not_load() -> None:
    """Less than the machine has, but not beside what the process holds before."""
    plan = on_cpu(400 * MIB, "bf16", "native", **SMALLEST)

    assert plan.weight_bytes < plan.stage.usable_bytes
    assert plan.verdict == "does not load"
    assert "The weights do not fit on" in plan.reason
