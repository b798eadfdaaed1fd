"""The engine on a CUDA device: the CPU's tokens, and the pool that was planned."""

import pytest
import torch

from nanoserve.launch.boot import boot
from nanoserve.launch.llm import LLM
from nanoserve.options import EngineOptions
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.units import MIB
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


def test_boot_takes_what_was_planned() -> None:
    """Weights and pool of a filling boot are within 3 % and 16 MiB of their plan."""
    booted = boot(EngineOptions(model="smollm2", device="cuda", gpu_memory_utilization=0.5))

    lines = {line.name: line for line in booted.report.budget}
    for name in ("weights", "kv pool"):
        planned, residual = lines[name].planned_bytes, lines[name].residual_bytes
        assert residual is not None
        assert abs(residual) <= 0.03 * planned + 16 * MIB, lines[name]
