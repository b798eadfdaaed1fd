"""Weights on a rank: groups, formats, stages, files."""

import pytest

from nanoserve.capacity.rank_weights import group_params, rank_weights
from nanoserve.plan.sharding import plan_stages
from nanoserve.spec.param_count import count_parameters
from nanoserve.spec.presets import preset_names
from nanoserve.spec.quant_spec import FULL_PRECISION, find_weight_format
from nanoserve.spec.read_model import read_planned_model


@pytest.mark.parametrize("model", preset_names())
def test_groups_hold_every_parameter(model: str) -> None:
    """On one rank all parameters are there; over stages none is lost."""
    shape = read_planned_model(model).shape

    assert sum(group_params(shape).values()) == count_parameters(shape).total
    assert rank_weights(shape, FULL_PRECISION)[0].num_params == count_parameters(shape).total


@pytest.mark.parametrize(("pp", "tp"), [(1, 8), (4, 1), (2, 4)])
def test_stages_are_those_of_the_sharding(pp: int, tp: int) -> None:
    """Parameters on each rank of each stage are what `plan_stages` says."""
    shape = read_planned_model("llama-3.1-70b").shape
    stages = rank_weights(shape, FULL_PRECISION, pp, tp)

    assert [one.num_params for one in stages] == [
        one.num_params for one in plan_stages(shape, pp, tp)
    ]
    assert [one.first_layer for one in stages] == [
        one.first_layer for one in plan_stages(shape, pp, tp)
    ]


def test_a_format_leaves_groups_alone() -> None:
    """AWQ stores projections in 4.16 bits; embedding, head, norms and biases stay."""
    shape = read_planned_model("llama-3.1-8b").shape
    found = rank_weights(shape, find_weight_format("awq"))[0]
    outside = 2 * 128_256 * 4096 + 65 * 4096
    inside = count_parameters(shape).total - outside

    assert found.weight_bytes.mid == pytest.approx((outside * 16 + inside * 4.15625) / 8, abs=1)


def test_gpt_oss_quantises_experts_alone() -> None:
    """Experts take 4.25 bits, their biases and all else 16."""
    model = read_planned_model("gpt-oss-20b")
    found = rank_weights(model.shape, model.weight_format)[0]

    assert found.weight_bytes.mid / 1e9 == pytest.approx(13.76, abs=0.02)


def test_files_are_shared_out_among_ranks() -> None:
    """Bytes of the files, where they are known, replace the formula's total."""
    shape = read_planned_model("llama-3.1-8b").shape
    whole = rank_weights(shape, FULL_PRECISION, file_bytes=10**10)[0]
    half = rank_weights(shape, FULL_PRECISION, tp=2, file_bytes=10**10)[0]

    assert whole.weight_bytes.mid == pytest.approx(10**10, abs=2)
    assert half.weight_bytes.mid == pytest.approx(10**10 / 2, rel=0.001)


def test_averages_have_a_range() -> None:
    """A GGUF type's average is off by some percent on another model; files are not."""
    shape = read_planned_model("llama-3.1-8b").shape
    stored = find_weight_format("Q4_K_M")
    guessed = rank_weights(shape, stored)[0].weight_bytes
    read = rank_weights(shape, stored, file_bytes=5 * 10**9)[0].weight_bytes

    assert guessed.low < guessed.mid < guessed.high
    assert read.low == read.high
