"""The native operators of this machine, and the mark of what needs them."""

import pytest

from nanoserve.kernels.kernel_build import find_compiler
from nanoserve.kernels.kernel_library import KernelLibrary, load_kernels

# Only a machine without a compiler may do without: one that cannot build them is a failure.
FOUND = None if find_compiler() is None else load_kernels()
needs_kernels = pytest.mark.skipif(FOUND is None, reason="needs a C++ compiler")


def native_kernels() -> KernelLibrary:
    assert FOUND is not None, "mark what calls this with needs_kernels"
    return FOUND
