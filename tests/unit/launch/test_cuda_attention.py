"""The stage that finds FlashInfer, where there is none: it says so, or refuses."""

import pytest
import torch

from nanoserve.errors import KernelError
from nanoserve.launch.cuda_attention import find_flashinfer
from nanoserve.launch.stages import SilentListener, Stages
from nanoserve.options import AttentionChoice, EngineOptions
from nanoserve.runner.device_memory import probe_of
from tests.plan_cases import GPU
from tests.tiny_models import CPU, tiny_spec

SPEC = tiny_spec(head_dim=64)


def stages() -> Stages:
    return Stages(SilentListener(), probe_of(CPU))


@pytest.mark.parametrize("choice", ["auto", "torch", "native"])
def test_a_cpu_has_no_such_stage(choice: AttentionChoice) -> None:
    """Nothing is looked for and nothing said."""
    ours = stages()

    assert find_flashinfer(EngineOptions(attention_backend=choice), SPEC, CPU, ours) is None
    assert ours.reports == []


def test_asked_for_on_a_cpu_it_is_refused() -> None:
    """It runs on CUDA alone."""
    options = EngineOptions(attention_backend="flashinfer")

    with pytest.raises(KernelError, match="runs on CUDA, and the device is cpu"):
        find_flashinfer(options, SPEC, CPU, stages())


def test_on_a_card_without_the_library_torch_attends_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stage names what is missing and how to get it; asked for by name it is an error."""
    monkeypatch.setattr("nanoserve.launch.cuda_attention.device_facts", lambda device, probe: GPU)
    ours, device = stages(), torch.device("cuda")

    assert find_flashinfer(EngineOptions(), SPEC, device, ours) is None
    assert "pip install 'nanoserve[cuda]'" in ours.reports[-1].detail

    with pytest.raises(KernelError, match="not installed"):
        find_flashinfer(EngineOptions(attention_backend="flashinfer"), SPEC, device, stages())
