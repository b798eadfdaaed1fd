"""Queries: checked once, and again when a variant is made."""

from dataclasses import replace
from typing import Any

import pytest

from nanoserve.capacity.plan_answer import answer
from nanoserve.errors import OptionError
from nanoserve.spec.gpu_spec import custom_gpu
from tests.planner import query


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"num_gpus": 0}, "--num-gpus is 0"),
        ({"num_gpus": 10**9}, "--num-gpus"),
        ({"tp": -1}, "--tp is -1"),
        ({"pp": 0}, "--pp is 0"),
        ({"max_model_len": 0}, "--max-model-len is 0"),
        ({"max_model_len": 1 << 40}, "--max-model-len"),
        ({"max_num_seqs": -5}, "--max-num-seqs is -5"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens is 0"),
        ({"utilization": 0.0}, "above 0 and at most 1"),
        ({"utilization": 1.5}, "above 0 and at most 1"),
        ({"utilization": float("nan")}, "above 0 and at most 1"),
        ({"engine": "mystery"}, "Known: vllm"),
        ({"engine": "vllm@new"}, "write a version"),
        ({"tp": 2}, "takes 2 GPUs and there are 1"),
        ({"num_gpus": 3, "tp": 2}, "does not divide the 3"),
        ({"num_gpus": 3, "pp": 2}, "does not divide the 3 GPUs"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 9}, "fewer tokens than requests"),
        ({"gpu": custom_gpu(24)}, "--gpu-mem is 24 bytes"),
        ({"gpu": custom_gpu(1 << 60)}, "--gpu-mem"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes: dict[str, Any], word: str) -> None:
    """The flag, its value and what is allowed are named."""
    with pytest.raises(OptionError, match=word):
        query(**changes)


def test_ranks_that_do_not_divide_the_model_are_refused_with_those_that_do() -> None:
    """Three GPUs divide no Llama; 1, 2, 4 and 8 do."""
    with pytest.raises(OptionError, match=r"--tp 3 does not divide.*1, 2, 4, 8"):
        answer(query("llama-3.1-8b", "3x h100"))


def test_a_variant_is_checked_again() -> None:
    """`dataclasses.replace` refuses what the constructor refuses."""
    with pytest.raises(OptionError):
        replace(query(), num_gpus=-1)


def test_copies_of_a_service() -> None:
    """Eight GPUs of two ranks and two stages are two copies."""
    asked = query("llama-3.1-8b", "8x h100", tp=2, pp=2)

    assert (asked.ranks, asked.num_replicas) == (2, 2)
    assert any("2 copies" in note for note in answer(asked).notes)


def test_versions() -> None:
    """A version stands after the engine's name; without one it is the newest known."""
    assert query(engine="vllm@0.9.1").version == (0, 9, 1)
    assert query(engine="vllm").version is None


@pytest.mark.parametrize("flag", ["tp", "pp"])
def test_too_many_ranks_are_refused_by_the_flag_that_asked(flag: str) -> None:
    """The number of GPUs that follows from a flag is not what the asker wrote."""
    changes: dict[str, Any] = {flag: 10**9}
    with pytest.raises(OptionError, match=f"--{flag} is 1,000,000,000"):
        query(num_gpus=10**9, **changes)


def test_a_small_step_lowers_vllms_default_slots() -> None:
    """64 tokens are a step of 64 requests at most: the command is one that vLLM starts."""
    plan = answer(query(max_num_batched_tokens=64))

    assert plan.choices.max_num_seqs == 64
    assert plan.fit.max_num_seqs <= 64


def test_far_too_much_memory_is_refused_in_words() -> None:
    """A slip of the exponent is no reason to print a hundred digits."""
    with pytest.raises(OptionError, match=r"--gpu-mem is more than 1 PiB; from 256 MiB to 1 PiB"):
        query(gpu=custom_gpu(10**99))
