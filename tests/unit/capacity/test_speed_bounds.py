"""Bounds on speed: bytes over bandwidth, operations over rate."""

import pytest

from nanoserve.capacity.workload import parse_workload
from nanoserve.spec.gpu_spec import custom_gpu
from nanoserve.spec.quant_spec import find_weight_format
from nanoserve.units import GIB
from tests.planner import planned

SHORT = parse_workload("tokens=16")


def seconds(model: str, gpus: str, **changes: object) -> float:
    """Return the decode floor of one request with next to no context."""
    found = planned(model, gpus, workload=SHORT, **changes).decode[0].seconds
    assert found is not None
    return found


def test_a_step_reads_every_weight_once() -> None:
    """8.03 B parameters less the embedding, 2 bytes each, at 3,352 GB/s."""
    expected = (8_030_261_248 - 128_256 * 4096) * 2 / 3.352e12

    assert seconds("llama-3.1-8b", "h100") == pytest.approx(expected, rel=0.001)


def test_ranks_read_side_by_side_and_stages_one_after_another() -> None:
    """Two ranks halve a step; two stages do not."""
    one = seconds("llama-3.1-70b", "h100")

    assert seconds("llama-3.1-70b", "2x h100") == pytest.approx(one / 2, rel=0.01)
    assert seconds("llama-3.1-70b", "2x h100", pp=2) == pytest.approx(one, rel=0.01)


def test_experts_are_read_in_expectation() -> None:
    """One token of Mixtral reads 2 of 8 experts; a large batch all of them."""
    plan = planned("mixtral-8x7b", "2x h100", workload=SHORT)
    first, batch = plan.decode
    assert first.formula is not None
    assert batch.seconds is not None
    symbols = first.formula.symbols

    assert (symbols["k"], symbols["E"]) == (2, 8)
    assert first.formula.value == pytest.approx(
        (symbols["weight_bytes"] + symbols["expert_bytes"] / 4 + symbols["kv_bytes"])
        / symbols["bandwidth"]
    )
    everything = (symbols["weight_bytes"] + symbols["expert_bytes"]) / symbols["bandwidth"]
    assert batch.seconds >= 0.999 * everything


def test_a_tied_embedding_is_read_as_the_head() -> None:
    """Gemma 3 1B reads its embedding for every token."""
    plan = planned("gemma-3-1b", "h100", workload=SHORT)

    assert plan.decode[0].seconds is not None
    assert plan.decode[0].seconds * 3.352e12 == pytest.approx(plan.num_params * 2, rel=0.01)


def test_fp8_without_units_saves_bytes_and_no_operations() -> None:
    """On an A100 8-bit weights halve the decode floor; the prefill runs at 16-bit rates."""
    fp8 = find_weight_format("fp8")
    plain, narrow = (planned("llama-3.1-8b", "a100 80gb", weight_format=one) for one in (None, fp8))
    fast = planned("llama-3.1-8b", "h100", weight_format=fp8)

    assert narrow.prefill.seconds == plain.prefill.seconds
    assert narrow.prefill.precision == "16 bits"
    assert fast.prefill.precision == "8 bits"
    assert narrow.decode[0].seconds is not None
    assert plain.decode[0].seconds is not None
    assert narrow.decode[0].seconds < 0.65 * plain.decode[0].seconds
    assert any("no FP8 units" in note for note in narrow.notes)


def test_prefill_multiplies_the_layers() -> None:
    """Two operations a weight and token, and attention beside them."""
    plan = planned("llama-3.1-8b", "h100", workload=parse_workload("prompt=1000,output=1"))
    layers = 8_030_261_248 - 2 * 128_256 * 4096
    attention = 32 * 2 * 32 * 256 * 1000 * 1000 / 2

    assert plan.prefill.seconds == pytest.approx(
        (2 * layers * 1000 + attention) / 989.4e12, rel=0.001
    )


def test_what_is_not_known_is_not_guessed() -> None:
    """A GPU stated by its memory alone has no bounds."""
    plan = planned(gpu=custom_gpu(80 * GIB))

    assert plan.decode[0].seconds is None
    assert plan.decode[0].tokens_per_second is None
    assert plan.prefill.seconds is None
