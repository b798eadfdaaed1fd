"""Every printed formula comes to its figure, and every figure of a plan has one."""

import pytest

from nanoserve.capacity.cache_cost import GroupedCost, SummedCost
from nanoserve.capacity.kv_formulas import blocks_formula, layer_formulas, request_formula
from nanoserve.capacity.plan_formulas import formula_lines, plan_formulas
from nanoserve.plan.formula import evaluate
from nanoserve.plan.kv_layout import full_bytes_per_token, state_bytes_per_request
from nanoserve.spec.presets import preset_names
from tests.planner import planned

ENGINES = ("vllm", "vllm@0.6.3", "vllm@0.9", "vllm@0.21", "sglang", "tensorrt-llm", "llama.cpp")


@pytest.mark.parametrize("model", preset_names())
def test_what_is_printed_is_what_was_computed(model: str) -> None:
    """For each engine: texts evaluate to values, lines to their formulas, parts to the total."""
    for engine in ENGINES:
        plan = planned(model, "8x h200", tp=1, pp=2, engine=engine)
        for formula in plan_formulas(plan):
            assert evaluate(formula.substituted) == formula.value, formula
        for line in plan.lines:
            assert line.formula is None or line.formula.value == line.size.mid, line
        inside = sum(line.size.mid for line in plan.lines if line.is_inside)
        assert inside == plan.stage.total_bytes, engine


@pytest.mark.parametrize("model", preset_names())
def test_layers_add_up(model: str) -> None:
    """Bytes of a token by kind of layer sum to the layout's own figure, states likewise."""
    plan = planned(model, "8x h200", tp=1)
    shape, cache = plan.stage.shape, plan.choices.cache
    formulas = list(layer_formulas(shape, cache))
    tokens = sum(one.value for one in formulas if "token" in one.name.split(" in ")[0])
    states = sum(one.value for one in formulas if "state" in one.name)

    assert tokens == full_bytes_per_token(shape, cache)
    assert states == state_bytes_per_request(shape, cache)


@pytest.mark.parametrize("model", preset_names())
@pytest.mark.parametrize("holding", ["steady", "admitted"])
def test_blocks_are_those_of_the_groups(model: str, holding: str) -> None:
    """The written sum over groups is the groups' own."""
    cost = planned(model, "8x h200", tp=1).stage.cost
    assert isinstance(cost, GroupedCost)

    for num_tokens in (1, 100, 8192, 100_000):
        blocks = cost.groups.request_blocks(
            num_tokens,
            cost.cache,
            holding=holding,  # type: ignore[arg-type]
        )
        assert blocks_formula(cost, num_tokens, holding).value == blocks  # type: ignore[arg-type]


@pytest.mark.parametrize("model", preset_names())
@pytest.mark.parametrize("engine", ["llama.cpp", "tensorrt-llm"])
def test_bytes_of_a_request_are_written_out(model: str, engine: str) -> None:
    """Where layers are summed, the written sum is what the pool is divided by."""
    plan = planned(model, "h200", num_gpus=1, tp=1, engine=engine)
    cost = plan.stage.cost
    assert isinstance(cost, SummedCost)

    for num_tokens in (1, 100, 8192, 100_000):
        formula = request_formula(cost, num_tokens)
        assert formula.value == cost.request_bytes(num_tokens, "steady")
        assert evaluate(formula.substituted) == formula.value
    names = [formula.name for formula in plan_formulas(plan)]
    assert not plan.has_pool or any(name.startswith("bytes of a request of") for name in names)


def test_explanations_name_the_keys() -> None:
    """The text has the config's own spelling of what was read, with its value."""
    text = "\n".join(formula_lines(planned("deepseek-v3", "8x h200")))

    assert "n_routed_experts = 256" in text
    assert "kv_lora_rank = 512" in text
    assert "= 61 * ((512 + 64) * 2)" in text


def test_small_sizes_are_bytes_alone() -> None:
    """12,288 bytes are not 0.0 MiB."""
    plan = planned("qwen3-next-80b", "2x h100")

    assert not any("(0.0 MiB)" in line for line in formula_lines(plan))


@pytest.mark.parametrize(
    ("model", "engine", "token_bytes", "window_bytes"),
    [
        ("mistral-7b-v0.1", "nanoserve", 131_072, 0),
        ("gemma-3-27b", "tensorrt-llm", 62 * 8192, 0),
        ("gemma-3-27b", "sglang", 62 * 8192, 0),
        ("gemma-3-27b", "vllm@0.7", 62 * 8192, 0),
        ("gemma-3-27b", "vllm@0.21", 10 * 8192, 52 * 8192),
        ("gemma-3-27b", "llama.cpp", 10 * 8192, 52 * 8192),
        ("deepseek-v2-lite", "vllm@0.6.4", 27 * 16 * 512 * 2, 0),
    ],
)
def test_a_token_costs_what_the_engine_caches(
    model: str, engine: str, token_bytes: int, window_bytes: int
) -> None:
    """A window that the engine has no pool for is no window, in the table and in the formulas."""
    plan = planned(model, "h200", engine=engine)
    lines = [
        formula for formula in plan_formulas(plan) if formula.name.startswith("bytes of a tok")
    ]

    facts = plan.kv_facts
    assert (facts.token_bytes, facts.window_bytes) == (token_bytes, window_bytes)
    assert sum(formula.value for formula in lines) == token_bytes + window_bytes
    assert any("slide" in formula.name for formula in lines) == bool(window_bytes)
    keeps_all = "gemma" in model and not window_bytes
    assert not keeps_all or any("keeping every token" in note for note in plan.notes)


def test_a_measured_term_is_written_as_it_was_measured() -> None:
    """0.27 GiB, not the digits that whole bytes turn it into."""
    text = "\n".join(formula_lines(planned("qwen3-8b", "h100", engine="vllm@0.21")))

    assert "= round(0.27 * 1073741824)\n" in text
