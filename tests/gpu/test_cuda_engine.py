"""The engine on a CUDA device: the CPU's tokens, and the pool that was planned."""

import pytest
import torch

from nanoserve.launch.llm import LLM
from nanoserve.sched.sampling_params import SamplingParams
from tests.reference.prompts import PROMPTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)


def answers(device: str) -> list[list[int]]:
    llm = LLM("smollm2", device=device, dtype="float32", max_model_len=256, num_blocks=256)
    outputs = llm.generate(PROMPTS[:8], GREEDY, show_progress=False)
    return [output.outputs[0].token_ids for output in outputs]


def test_cuda_gives_the_cpus_tokens() -> None:
    """In float32 the same prompts get the same tokens on both devices."""
    assert answers("cuda") == answers("cpu")


def test_pool_fills_the_device_as_planned() -> None:
    """The pool allocated from measured free bytes is within 5 % of the planned one."""
    llm = LLM("smollm2", device="cuda", gpu_memory_utilization=0.5)

    assert llm.num_blocks == pytest.approx(llm.plan.kv_pool.num_blocks, rel=0.05)
