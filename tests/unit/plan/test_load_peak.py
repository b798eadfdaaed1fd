"""What loading takes for a moment; that it is what is taken is in `launch/test_boot_memory`."""

from dataclasses import replace

import pytest

from nanoserve.errors import DoesNotFitError
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_plan import plan_boot
from nanoserve.plan.load_peak import LoadPlan, packing_bytes_of, plan_load
from nanoserve.plan.native_facts import native_backend_facts
from nanoserve.plan.weight_plan import choose_formats, plan_weights
from nanoserve.units import GIB, MIB
from tests.plan_cases import CPU, LLAMA_32_1B, SMOLLM2, with_free

FEW_LAYERS = replace(LLAMA_32_1B, num_layers=1, vocab_size=256)
HOST = replace(CPU, has_native_ops=True)
SMALL_POOL = EngineOptions(
    quantization="int4", dtype="bfloat16", num_blocks=8, max_model_len=128, decode_mode="eager"
)


def test_the_peak_is_the_larger_of_what_is_never_held_at_once() -> None:
    """A layer in float32 goes before the first packed weight comes."""
    assert LoadPlan(weight_bytes=100, packing_bytes=10, measuring_bytes=50).peak_bytes == 110
    assert LoadPlan(weight_bytes=100, packing_bytes=10, measuring_bytes=500).peak_bytes == 500


@pytest.mark.parametrize(
    ("load", "expression"),
    [
        (LoadPlan(100, 10, 0), "weights + packing"),
        (LoadPlan(100, 10, 50), "max(weights + packing, measuring)"),
        (LoadPlan(100, 10, 500), "max(weights + packing, measuring)"),
    ],
)
def test_the_peak_has_a_formula(load: LoadPlan, expression: str) -> None:
    """It comes to the same, and names what is there at all."""
    formula = load.peak_formula

    assert formula is not None
    assert (formula.expression, formula.value) == (expression, load.peak_bytes)


@pytest.mark.parametrize(("quantization", "is_fitted"), [("none", 0), ("int8", 0), ("int4", 1)])
def test_only_a_fit_to_4_bits_measures(quantization: str, is_fitted: bool) -> None:
    """Its layer alone, 3.5 million weights in float32, is the most of what that takes."""
    weights = plan_weights(SMOLLM2, "bfloat16", quantization, is_packed=True)  # type: ignore[arg-type]

    load = plan_load(SMOLLM2, weights, weights.num_bytes)

    layer_bytes = 4 * 3_538_944
    assert bool(load.measuring_bytes) == is_fitted
    assert load.measuring_bytes <= 1.5 * layer_bytes
    assert load.measuring_bytes >= is_fitted * layer_bytes
    assert 16 * MIB <= load.packing_bytes <= 32 * MIB


def test_weights_that_are_not_packed_take_no_more() -> None:
    """On a GPU they are copied where they stay."""
    weights = plan_weights(SMOLLM2, "bfloat16", "none", is_packed=False)

    assert plan_load(SMOLLM2, weights, 1000) == LoadPlan(1000, 0, 0)
    assert LoadPlan(1000, 0, 0).peak_formula is None


def test_a_tensor_that_begins_within_a_panel_is_held_as_a_whole() -> None:
    """The fused weight is then packed at once, however large."""
    formats = choose_formats("none", "bfloat16")
    uneven = replace(LLAMA_32_1B, intermediate_size=8200)

    gate_up_bytes = 2 * 8200 * 2048 * 2
    assert packing_bytes_of(uneven, formats) >= 2 * gate_up_bytes
    assert packing_bytes_of(LLAMA_32_1B, formats) < gate_up_bytes


def test_a_first_start_that_cannot_load_is_refused() -> None:
    """Weights and pool would fit, a layer in float32 does not; 8 bits need none and are no way out."""
    facts = native_backend_facts(FEW_LAYERS, 16, "int4")
    fitting = plan_boot(FEW_LAYERS, SMALL_POOL, HOST, facts)
    assert fitting.load.peak_bytes == fitting.load.measuring_bytes > fitting.planned_bytes

    crowded = with_free(HOST, fitting.load.peak_bytes - 1)
    with pytest.raises(DoesNotFitError, match="while they load: measuring the inputs") as caught:
        plan_boot(FEW_LAYERS, SMALL_POOL, crowded, facts)

    assert caught.value.need_bytes == fitting.load.peak_bytes
    assert caught.value.have_bytes == fitting.load.peak_bytes - 1
    plan_boot(FEW_LAYERS, SMALL_POOL, with_free(HOST, fitting.load.peak_bytes), facts)


def test_a_pool_hides_what_loading_takes() -> None:
    """The two are never there at once, so the larger of them is what is needed, not the sum."""
    facts = native_backend_facts(LLAMA_32_1B, 16, "int4")
    options = EngineOptions(quantization="int4", dtype="bfloat16")
    plan = plan_boot(LLAMA_32_1B, options, HOST, facts)

    assert plan.load.peak_bytes < plan.planned_bytes
    plan_boot(LLAMA_32_1B, options, with_free(HOST, plan.planned_bytes), facts)
    assert plan.planned_bytes < 2 * GIB
