"""Native operators serve where they can; why they do not is said once, or refused."""

import pytest
import torch

from nanoserve.errors import KernelError
from nanoserve.launch import cpu_kernels
from nanoserve.launch.cpu_kernels import find_kernels
from nanoserve.launch.stages import SilentListener, Stages
from nanoserve.options import AttentionChoice, EngineOptions
from nanoserve.runner.device_memory import probe_of
from tests.native_kernels import native_kernels, needs_kernels
from tests.tiny_models import CPU, tiny_spec


def find(
    choice: AttentionChoice, head_dim: int = 8, device: torch.device = CPU
) -> tuple[object, list[str]]:
    """Return what was found, and what the stage said of it, if there was one."""
    stages = Stages(SilentListener(), probe_of(CPU))
    options = EngineOptions(attention_backend=choice)
    kernels = find_kernels(options, tiny_spec(head_dim=head_dim), device, stages)
    return kernels, [report.detail for report in stages.reports]


@needs_kernels
@pytest.mark.parametrize("choice", ["auto", "native"])
def test_a_cpu_with_a_compiler_is_served_natively(choice: AttentionChoice) -> None:
    """Asked for or not; the stage says what they were compiled for."""
    kernels, details = find(choice)

    assert getattr(kernels, "path", None) == native_kernels().path
    assert details == [f"native operators, {native_kernels().describe()}"]


def test_torch_is_had_for_the_asking() -> None:
    """With --attention-backend torch there is no such stage."""
    assert find("torch") == (None, [])


def test_a_gpu_is_left_to_torch() -> None:
    """On CUDA, auto is torch; native is refused."""
    cuda = torch.device("cuda")

    assert find("auto", device=cuda) == (None, [])
    with pytest.raises(KernelError, match="run on the CPU, and the device is cuda"):
        find("native", device=cuda)


def test_shapes_without_code_are_reported_or_refused() -> None:
    """Automatic: the stage says why. Asked for: the same words as an error."""
    kernels, (detail,) = find("auto", head_dim=12)

    assert kernels is None
    assert "head_dim is 12" in detail
    with pytest.raises(KernelError, match="head_dim is 12"):
        find("native", head_dim=12)


def test_a_machine_without_a_compiler_serves_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failed build is a line of the report, not a crash."""

    def fail() -> None:
        message = "Native operators need a C++ compiler"
        raise KernelError(message)

    monkeypatch.setattr(cpu_kernels, "load_kernels", fail)

    kernels, (detail,) = find("auto")

    assert kernels is None
    assert detail == "none, plain torch serves, slower. Native operators need a C++ compiler"


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (EngineOptions(quantization="int8"), "--quantization int8"),
        (EngineOptions(kv_cache_dtype="fp8"), "--kv-cache-dtype fp8"),
        (
            EngineOptions(quantization="int4", kv_cache_dtype="int8"),
            "--quantization int4 and --kv-cache-dtype int8",
        ),
    ],
)
def test_what_they_alone_serve_is_refused_with_their_problem(
    options: EngineOptions, flags: str
) -> None:
    """Not with a guess that the compiler is missing: here the model's heads are odd."""
    stages = Stages(SilentListener(), probe_of(CPU))

    with pytest.raises(KernelError, match=f"^{flags}: .* head_dim is 12"):
        find_kernels(options, tiny_spec(head_dim=12), CPU, stages)
