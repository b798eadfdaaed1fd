"""What this machine has, as the driver's tool prints it."""

from pathlib import Path

import pytest

from nanoserve.cli.this_machine import machine_gpus, machine_memory, processor_has
from nanoserve.units import GIB, MIB


def test_cards_of_the_table() -> None:
    """A card that is known has the table's figures; those alike are counted."""
    found = machine_gpus(lambda: "NVIDIA H200, 143771\nNVIDIA H200, 143771\n")

    assert found is not None
    assert (found.num_gpus, found.gpu.name) == (2, "H200")
    assert found.gpu.memory_bytes == round(139.8 * GIB)


def test_a_card_that_nobody_listed() -> None:
    """Its memory follows from what the driver says, a little less."""
    found = machine_gpus(lambda: "Mystery 9000, 20000\n")

    assert found is not None
    assert found.gpu.name == "Mystery 9000"
    assert 0.97 * 20_000 * MIB < found.gpu.memory_bytes < 20_000 * MIB


@pytest.mark.parametrize("text", ["", "No devices were found\n", "NVIDIA H200, [N/A]\n", "a,b,c"])
def test_no_gpu(text: str) -> None:
    """Nothing that can be read is no GPU."""
    assert machine_gpus(lambda: text) is None


def test_memory_of_this_machine() -> None:
    """What this process may take is planned as a device of its own."""
    gpu = machine_memory()

    assert gpu.memory_bytes > 0
    assert gpu.name == "this machine's memory"
    assert gpu.is_host


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        ("fpu avx512f avx512_bf16 avx512_vnni", {"bf16"}),
        ("fpu amx_bf16 amx_tile amx_int8", {"bf16", "amx"}),
        ("fpu avx2", set()),
    ],
)
def test_what_the_processor_has(flags: str, has: set[str], tmp_path: Path) -> None:
    """Its own words say whether bfloat16 has hardware, and whether there is a matrix unit."""
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")

    assert processor_has(tmp_path / "cpuinfo") == has
    assert processor_has(tmp_path / "nobody") == set()


def test_native_operators_need_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there, or can be built, where there is one."""
    monkeypatch.setattr("nanoserve.kernels.kernel_build.find_compiler", lambda: None)
    assert "native" not in machine_memory().host_has
    monkeypatch.setattr("nanoserve.kernels.kernel_build.find_compiler", lambda: "c++")
    assert "native" in machine_memory().host_has
