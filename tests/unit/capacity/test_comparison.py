"""`comparison`: every combination is planned or refused, and the better saving is named."""

import pytest

from nanoserve.capacity.compare_table import compare_lines
from nanoserve.capacity.comparison import Axes, compare, compare_savings, default_axes, winners
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.errors import OptionError
from nanoserve.spec.gpu_names import find_gpu, find_gpus
from nanoserve.spec.quant_spec import find_weight_format
from nanoserve.spec.read_model import read_planned_model


def planned(model: str, gpu: str, num_gpus: int = 1, engine: str = "vllm") -> PlanAnswer:
    model_shape = read_planned_model(model)
    return answer(PlanQuery(model=model_shape, gpu=find_gpu(gpu), num_gpus=num_gpus, engine=engine))


def test_every_combination_is_a_row() -> None:
    """Two GPUs, two formats, two KV formats and two numbers of ranks are sixteen plans."""
    base = planned("llama-3.1-8b", "h100").query
    axes = Axes(
        gpus=(find_gpus("h100"), find_gpus("2x l4")),
        weight_formats=(find_weight_format("bf16"), find_weight_format("awq")),
        kv_cache_dtypes=("auto", "fp8"),
        tps=(1, 2),
    )
    rows = compare(base, axes)

    assert len(rows) == 16
    assert {(row.gpus.gpu.name, row.tp, row.weight_name, row.kv_name) for row in rows} == {
        (gpu, tp, weights, kv)
        for gpu in ("H100 SXM", "L4")
        for tp in (1, 2)
        for weights in ("bf16", "awq-int4-g128")
        for kv in ("bf16", "fp8")
    }


def test_a_row_is_the_plan_asked_for_alone() -> None:
    """Side by side or by itself, a combination has the same answer."""
    base = planned("qwen3-32b", "h100").query
    rows = compare(base, Axes(kv_cache_dtypes=("auto", "fp8")))

    assert rows[0].plan is not None
    assert rows[0].plan.pool == answer(base).pool


def test_what_cannot_be_planned_says_why() -> None:
    """Three ranks do not divide 32 heads: a refused row, and the reason once below the table."""
    base = planned("llama-3.1-8b", "h100").query
    rows = compare(base, Axes(kv_cache_dtypes=("auto", "fp8"), tps=(1, 3)))
    lines = compare_lines(rows, None)

    assert [row.plan is None for row in rows] == [False, False, True, True]
    assert sum("does not divide" in line for line in lines) == 1
    assert all(row.plan is not None for row in winners(rows))


def test_too_many_plans_are_refused() -> None:
    """A list of everything times everything is a mistake."""
    base = planned("llama-3.1-8b", "h100").query
    with pytest.raises(OptionError, match="2,001 plans"):
        compare(base, Axes(tps=(1,) * 2001))


def test_eight_bit_kv_wins_where_the_pool_is_larger_than_what_weights_free() -> None:
    """Of an 8 B model on one H100; the 70 B on two has a pool of 4 GiB and frees 32."""
    small = compare_savings(planned("llama-3.1-8b", "h100"))
    large = compare_savings(planned("llama-3.1-70b", "h100", 2))

    assert small is not None
    assert large is not None
    assert (small.winner, large.winner) == ("8-bit KV", "8-bit weights")
    for savings in (small, large):
        kv_wins = savings.base.pool.mid > savings.freed_bytes
        assert (savings.kv_gain > savings.weights_gain) == kv_wins


def test_savings_that_are_taken_already_are_not_compared() -> None:
    """A checkpoint in 8 bits, or an engine without 8-bit KV, has nothing to compare."""
    assert compare_savings(planned("deepseek-v3", "h200", 8)) is None
    assert compare_savings(planned("llama-3.1-8b", "h100", engine="nanoserve")) is None


def test_what_is_compared_where_nobody_says() -> None:
    """The checkpoint's own format and coarser ones, with both KV formats."""
    axes = default_axes(planned("llama-3.1-8b", "h100"))

    assert [one and one.name for one in axes.weight_formats] == [None, "fp8", "awq-int4-g128"]
    assert axes.kv_cache_dtypes == ("auto", "fp8")


def test_copies_count_together_and_the_same_machine_is_one_row() -> None:
    """Four H100 with one rank are four copies; two ranks of `h100` are `2x h100`."""
    base = planned("llama-3.1-8b", "h100").query
    rows = compare(base, Axes(gpus=tuple(map(find_gpus, ("h100", "2x h100", "4x h100")))))
    wide = compare(base, Axes(gpus=(find_gpus("h100"), find_gpus("4x h100")), tps=(1,)))
    same = compare(base, Axes(gpus=(find_gpus("h100"), find_gpus("2x h100")), tps=(2,)))

    assert [row.tp for row in rows] == [1, 2, 4]
    assert wide[1].requests == 4 * wide[0].requests > 0
    assert [row.requests for row in winners(wide)] == [wide[0].requests, wide[1].requests]
    assert "requests of all" in "\n".join(compare_lines(wide, None))
    assert len(same) == 1


@pytest.mark.parametrize(("engine", "ratio"), [("vllm", 2.0), ("llama.cpp", 128 / 68)])
def test_the_break_even_is_where_both_add_as_much(engine: str, ratio: float) -> None:
    """Freed / (ratio - 1): q8_0 has scales, so its pool has to be larger than what is freed."""
    savings = compare_savings(planned("llama-3.1-8b", "rtx 4090", engine=engine))
    assert savings is not None
    even = savings.break_even_bytes
    assert even is not None

    assert even == pytest.approx(savings.freed_bytes / (ratio - 1), rel=0.01)
    assert (savings.base.pool.mid > even) == (savings.winner == "8-bit KV")
    assert f"Break-even: a pool of {even / 2**30:.2f} GiB" in "\n".join(compare_lines((), savings))


def test_without_a_pool_there_is_no_break_even() -> None:
    """Weights that do not load leave nothing that 8-bit KV could divide."""
    savings = compare_savings(planned("llama-3.1-8b", "t4"))

    assert savings is not None
    assert savings.break_even_bytes is None
    assert "nothing that 8-bit KV could divide" in "\n".join(compare_lines((), savings))
