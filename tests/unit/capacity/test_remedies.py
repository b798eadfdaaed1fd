"""`remedies`: whatever is offered serves when it is planned."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.capacity.remedies import coarser_weights, kv_spellings, remedies
from nanoserve.spec.gpu_names import find_gpu
from nanoserve.spec.quant_spec import find_weight_format
from nanoserve.spec.read_model import read_planned_model


def planned(model: str, gpu: str, **fields: object) -> PlanAnswer:
    return answer(PlanQuery(model=read_planned_model(model), gpu=find_gpu(gpu), **fields))  # type: ignore[arg-type]


def test_a_plan_that_serves_needs_none() -> None:
    """Nothing is proposed to who has no problem."""
    assert remedies(planned("llama-3.1-8b", "h100")) == ()


def test_weights_that_do_not_fit_become_fewer_bits_or_more_gpus() -> None:
    """70 B in 16 bits on 79 GiB: 8 bits leave no pool, 4 bits do; of GPUs the fewest are named."""
    found = remedies(planned("llama-3.1-70b", "h100"))

    assert [remedy.words for remedy in found] == ["--quantization awq", "--num-gpus 4 --tp 4"]
    assert all(remedy.plan.fits for remedy in found)
    assert all(remedy.pool_delta > 0 for remedy in found)


def test_a_request_longer_than_the_pool_becomes_shorter() -> None:
    """The length that is offered fits, and one step more does not."""
    plan = planned("llama-3.1-8b", "rtx 4090", max_model_len=131072)
    first = remedies(plan)[0]

    assert first.words == f"--max-model-len {first.plan.max_model_len}"
    assert first.plan.max_model_len <= plan.longest_fit < first.plan.max_model_len + 1024
    assert first.pool_delta == 0


def test_two_changes_are_offered_where_one_is_not_enough() -> None:
    """A 70 B model on two small cards needs fewer bits and a shorter length at once."""
    plan = planned("llama-3.1-70b", "rtx 4090", num_gpus=2, max_model_len=131072)
    found = remedies(plan)

    assert found
    assert all(remedy.plan.fits for remedy in found)


@pytest.mark.parametrize(
    ("engine", "kv"),
    [
        ("vllm", ("fp8",)),
        ("sglang", ("fp8",)),
        ("tensorrt-llm", ("fp8",)),
        ("llama.cpp", ("q8_0",)),
        ("nanoserve", ()),
        ("vllm@0.2.7", ()),
        ("vllm@0.5.4", ("fp8",)),
    ],
)
def test_each_engine_has_its_spelling(engine: str, kv: tuple[str, ...]) -> None:
    """8-bit keys and values are asked for as the engine writes them, or not at all."""
    plan = planned("llama-3.1-8b", "h100", engine=engine)

    assert kv_spellings(plan.query) == kv


def test_a_release_is_offered_no_format_from_after_it() -> None:
    """Nothing was quantised to fp8 by vLLM in 2023; AWQ checkpoints are older."""
    early, later = (
        planned("llama-3.1-8b", "l4", engine=engine) for engine in ("vllm@0.2.7", "vllm@0.8")
    )

    assert coarser_weights(early) == ("awq",)
    assert coarser_weights(later) == ("fp8", "awq")


def test_weights_are_only_made_coarser() -> None:
    """From 8 bits on, 4 bits are left; a card without fp8 units is offered int8."""
    plan = planned("llama-3.1-8b", "a100 80gb sxm")
    assert coarser_weights(plan) == ("int8", "awq")

    eight = answer(replace(plan.query, weight_format=find_weight_format("fp8")))
    assert coarser_weights(eight) == ("awq",)
    assert coarser_weights(planned("llama-3.1-8b", "h100")) == ("fp8", "awq")
    assert coarser_weights(planned("llama-3.1-8b", "h100", engine="llama.cpp")) == (
        "Q8_0",
        "Q4_K_M",
    )


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(["llama-3.1-8b", "gemma-3-27b", "qwen3-32b", "mixtral-8x7b"]),
    gpu=st.sampled_from(["rtx 3090", "rtx 4090", "l4", "a100 40gb", "h100"]),
    engine=st.sampled_from(["vllm", "vllm@0.8", "sglang", "llama.cpp", "tensorrt-llm"]),
    max_model_len=st.one_of(st.none(), st.integers(1, 131072)),
)
def test_every_remedy_serves(model: str, gpu: str, engine: str, max_model_len: int | None) -> None:
    """What is printed as a way out is one: planned by itself it serves."""
    plan = planned(model, gpu, engine=engine, max_model_len=max_model_len)

    for remedy in remedies(plan):
        again = answer(remedy.plan.query)
        assert again.fits, (remedy.words, again.reason)
        assert remedy.pool_delta == again.pool.mid - plan.pool.mid


def test_our_own_server_is_offered_nothing_it_refuses() -> None:
    """No ranks and no formats: remedies are planned, not refused."""
    query = PlanQuery(model=read_planned_model("llama-3.1-8b"), gpu=find_gpu("rtx 3060"),
                      engine="nanoserve")  # fmt: skip
    found = remedies(answer(query))

    assert all("--tp" not in one.words and "--quant" not in one.words for one in found)
