"""Advice is written as flags. That it fits: tests/property/test_advice_fits.py."""

from dataclasses import replace

import pytest

from nanoserve.errors import CaptureTooSmall, DoesNotFitError, PlanError
from nanoserve.options import EngineOptions, Quantization
from nanoserve.plan.boot_advice import Changes, as_flags, capture_advice, memory_advice
from nanoserve.plan.boot_choices import choose
from nanoserve.plan.boot_plan import plan_boot
from nanoserve.plan.boot_sizing import pool_demand
from nanoserve.plan.memory_budget import MemoryBudget
from nanoserve.units import MIB
from tests.plan_cases import CPU, SMOLLM2, with_free


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"max_model_len": 160}, "--max-model-len 160"),
        ({"kv_cache_bytes": 3 * 2**20}, "--kv-cache-bytes 3MiB"),
        ({"kv_cache_bytes": 1000}, "--kv-cache-bytes 1000"),
        ({"cuda_graphs": False}, "--no-cuda-graphs"),
        ({"warm_width": 128, "warm": True}, "--warm-width 128 --warm"),
    ],
)
def test_changes_are_written_as_they_are_typed(changes: Changes, flags: str) -> None:
    """Bytes in MiB where they are whole, switches without a value."""
    assert as_flags(changes) == flags


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (EngineOptions(), "--decode-mode eager"),
        (EngineOptions(cuda_graphs=True), "--no-cuda-graphs"),
        (
            EngineOptions(cuda_graphs=True, decode_mode="captured"),
            "--no-cuda-graphs --decode-mode eager",
        ),
    ],
)
def test_capture_is_given_up_by_the_flag_that_asked_for_it(
    options: EngineOptions, flags: str
) -> None:
    """The advice does not contradict a flag that stays on the command line."""
    advice = capture_advice(CaptureTooSmall("limit", 1, 4), options, lambda changed: None)

    assert advice == ("--capture-limit 4", "--warm-rows 7", flags)


@pytest.mark.parametrize("fitting", [100, 101, 130, 999])
def test_the_largest_token_budget_that_fits_is_offered(fitting: int) -> None:
    """Budgets under the number of requests are no options, so the search begins there."""
    options = EngineOptions(max_num_seqs=100, max_num_batched_tokens=1000)
    refusal = DoesNotFitError("", 1, 0, budget=MemoryBudget.divide(1, {}))

    def attempt(changed: EngineOptions) -> PlanError | None:
        budget = changed.max_num_batched_tokens
        return None if budget is not None and budget <= fitting else refusal

    choices = choose(SMOLLM2, options, CPU)
    demand = pool_demand(SMOLLM2, options, choices)
    advice = memory_advice(refusal, options, choices, demand, attempt)

    assert advice == (f"--max-num-batched-tokens {fitting}",)


def test_a_number_without_bounds_is_refused_all_the_same() -> None:
    """Advice for more requests than a machine word counts is found as any other."""
    options = EngineOptions(max_num_seqs=10**30, max_model_len=64)

    with pytest.raises(DoesNotFitError) as refusal:
        plan_boot(SMOLLM2, options, CPU)

    assert any(flags.startswith("--max-num-seqs ") for flags in refusal.value.advice)


@pytest.mark.parametrize(
    ("free_mib", "quantization", "flags"),
    [
        (300, "none", "--quantization int8"),  # weights of 513 MiB, 136 in int8, 92 in int4
        (120, "none", "--quantization int4"),  # 20 more are taken while they are packed
        (120, "int8", "--quantization int4"),
        (300, "int4", None),
        (20, "none", None),
    ],
)
def test_fewer_bits_are_offered_where_they_fit(
    free_mib: int, quantization: Quantization, flags: str | None
) -> None:
    """The most bits that do, planned again; none where there is no native operator to read them."""
    cpu = replace(with_free(CPU, free_mib * MIB), has_native_ops=True)
    options = EngineOptions(
        quantization=quantization,
        max_num_seqs=1,
        max_model_len=2 if free_mib < 300 or quantization == "none" else 2048,
        max_num_batched_tokens=1,
        kv_cache_bytes=2**30 if quantization == "int4" else None,
    )

    with pytest.raises(DoesNotFitError) as refusal:
        plan_boot(SMOLLM2, options, cpu)

    offered = [one for one in refusal.value.advice if "quantization" in one]
    assert offered == ([] if flags is None else [flags])
    with pytest.raises(DoesNotFitError) as refusal:
        plan_boot(SMOLLM2, replace(options, quantization="none"), with_free(CPU, free_mib * MIB))
    assert not any("quantization" in one for one in refusal.value.advice)
