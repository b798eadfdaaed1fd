"""Native operators serve where they can; why they do not is said once, or refused."""

import pytest
import torch

from nanoserve.errors import KernelError
from nanoserve.launch import cpu_kernels
from nanoserve.launch.cpu_kernels import find_kernels
from nanoserve.launch.stages import SilentListener, Stages
from nanoserve.options import AttentionChoice
from nanoserve.runner.device_memory import probe_of
from tests.native_kernels import native_kernels, needs_kernels
from tests.tiny_models import CPU, tiny_spec


class NoteKeeper(SilentListener):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def find(
    choice: AttentionChoice, head_dim: int = 8, device: torch.device = CPU
) -> tuple[object, list[str]]:
    """Return what was found, and the notes."""
    listener = NoteKeeper()
    stages = Stages(listener, probe_of(CPU))
    return find_kernels(choice, tiny_spec(head_dim=head_dim), device, stages), listener.notes


@needs_kernels
@pytest.mark.parametrize("choice", ["auto", "native"])
def test_a_cpu_with_a_compiler_is_served_natively(choice: AttentionChoice) -> None:
    """Asked for or not, without a word."""
    kernels, notes = find(choice)

    assert getattr(kernels, "path", None) == native_kernels().path
    assert notes == []


def test_torch_is_had_for_the_asking() -> None:
    """With --attention-backend torch nothing is built or noted."""
    assert find("torch") == (None, [])


def test_a_gpu_is_left_to_torch() -> None:
    """On CUDA, auto is torch; native is refused."""
    cuda = torch.device("cuda")

    assert find("auto", device=cuda) == (None, [])
    with pytest.raises(KernelError, match="run on the CPU, and the device is cuda"):
        find("native", device=cuda)


def test_heads_without_code_are_noted_or_refused() -> None:
    """Automatic: one note that says why. Asked for: the same words as an error."""
    kernels, notes = find("auto", head_dim=12)

    assert kernels is None
    (note,) = notes
    assert "this model has 2 of 12" in note
    with pytest.raises(KernelError, match="this model has 2 of 12"):
        find("native", head_dim=12)


def test_a_machine_without_a_compiler_serves_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failed build is a note, not a crash."""

    def fail() -> None:
        message = "Native operators need a C++ compiler"
        raise KernelError(message)

    monkeypatch.setattr(cpu_kernels, "load_kernels", fail)

    kernels, notes = find("auto")

    assert kernels is None
    assert "need a C++ compiler" in notes[0]
