"""How many steps are recorded, and what the boot estimates they take."""

import pytest

from nanoserve.capacity.engine_formulas import graph_formula
from nanoserve.capacity.engine_memory import EngineLoad
from nanoserve.capacity.engine_profile import find_profile
from nanoserve.capacity.interval import Interval
from nanoserve.capacity.recorded_graphs import graph_bytes, recorded_graphs
from nanoserve.units import GIB

# Layers, and the estimate that vLLM 0.19 logged with 1,024 slots on an H100.
# Source: llm-d's published accuracy report.
ESTIMATED = [
    ("Llama 3.1 8B", 32, 0.84),
    ("Qwen2.5 7B", 28, 0.61),
    ("Qwen3 8B", 36, 0.84),
    ("Qwen3 30B A3B", 48, 1.24),
    ("Gemma 2 2B", 26, 0.52),
    ("Gemma 2 9B", 42, 0.84),
    ("Gemma 2 27B", 46, 1.13),
    ("Gemma 3 4B", 34, 0.70),
    ("Gemma 3 27B", 62, 1.05),
    ("phi-2", 32, 0.55),
    ("phi-4", 40, 0.81),
    ("Qwen2.5 72B, 2 ranks", 80, 1.63),
]


@pytest.mark.parametrize(
    ("slots", "num_steps"),
    [(1024, 51 + 51), (512, 51 + 51), (256, 51 + 35), (16, 7 + 5), (1, 2 + 1)],
)
def test_steps_recorded_by_default(slots: int, num_steps: int) -> None:
    """Piecewise up to twice the slots and at most 512, whole decode steps up to the slots."""
    assert recorded_graphs(slots) == num_steps


@pytest.mark.parametrize(("name", "num_layers", "logged"), ESTIMATED)
def test_estimates_follow_layers_and_steps(name: str, num_layers: int, logged: float) -> None:
    """Each to a third, and all in the interval."""
    estimate = graph_bytes(find_profile("vllm@0.21"), 1024, num_layers)

    assert estimate.mid / GIB == pytest.approx(logged, rel=0.34), name
    assert logged * GIB in estimate, name


def test_estimates_are_off_neither_way() -> None:
    """Half of them are within a tenth."""
    profile = find_profile("vllm@0.21")
    errors = sorted(
        graph_bytes(profile, 1024, layers).mid / (logged * GIB) - 1
        for _, layers, logged in ESTIMATED
    )

    assert abs(sum(errors) / len(errors)) < 0.05
    assert sorted(map(abs, errors))[len(errors) // 2] < 0.13


def test_an_eager_engine_records_nothing() -> None:
    """Nor does one that never does."""
    assert graph_bytes(find_profile("vllm@0.21"), 256, 32, is_eager=True) == Interval.exactly(0)
    assert graph_bytes(find_profile("llama.cpp"), 256, 32) == Interval.exactly(0)


def test_without_an_estimate_what_was_measured_stands() -> None:
    """Graphs outside the budget are the same for every model."""
    profile = find_profile("vllm@0.19")

    assert graph_bytes(profile, 256, 32) == graph_bytes(profile, 1024, 80)
    assert 0.96 * GIB in graph_bytes(profile, 1024, 36)


@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("engine", ["vllm@0.19", "vllm@0.21", "sglang", "llama.cpp"])
def test_the_formula_is_the_likely_figure(engine: str, is_eager: bool) -> None:
    """As a plan prints it; layers and steps are in it where the engine estimates."""
    profile = find_profile(engine)
    load = EngineLoad(128_256, 4096, 14336, 1024, 8192, 8192, num_layers=32)
    formula = graph_formula(profile, load, is_eager=is_eager)

    assert formula.value == graph_bytes(profile, 1024, 32, is_eager=is_eager).mid
    assert ("layers" in formula.symbols) is (engine == "vllm@0.21" and not is_eager)
