"""The native operators of this machine, and the mark of what needs them."""

import platform
from pathlib import Path

import pytest
import torch

from nanoserve.kernels.kernel_build import build_kernels, find_compiler
from nanoserve.kernels.kernel_library import KernelLibrary, load_kernels

# Only a machine without a compiler may do without: one that cannot build them is a failure.
FOUND = None if find_compiler() is None else load_kernels()
needs_kernels = pytest.mark.skipif(FOUND is None, reason="needs a C++ compiler")
# In a process of its own: in this one there is no matrix unit, whatever the machine has.
HAS_NATIVE_STEPS = FOUND is not None and not torch.cpu._is_amx_tile_supported()
needs_native_steps = pytest.mark.skipif(
    not HAS_NATIVE_STEPS, reason="needs a C++ compiler, and a CPU without a matrix unit"
)

# Flags of /proc/cpuinfo without which a processor dies of what is compiled for an architecture.
_V3_FLAGS = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_NEEDED_FLAGS = {
    "x86-64": frozenset[str](),
    "x86-64-v3": _V3_FLAGS,
    "skylake-avx512": _V3_FLAGS | {f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl")},
}


def native_kernels() -> KernelLibrary:
    assert FOUND is not None, "mark what calls this with needs_kernels"
    return FOUND


def kernels_for(architecture: str) -> KernelLibrary:
    """Return the operators compiled for an x86 architecture; skip where it is another's."""
    if platform.machine() != "x86_64":
        pytest.skip("names x86 architectures")
    missing = _NEEDED_FLAGS[architecture] - set(Path("/proc/cpuinfo").read_text().split())
    if missing:
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    if FOUND is None:
        pytest.skip("needs a C++ compiler")
    return KernelLibrary(build_kernels(architecture))  # which that compiler has to be able to
