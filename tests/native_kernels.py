"""The native operators of this machine, and the mark of what needs them."""

import pytest

from nanoserve.errors import KernelError
from nanoserve.kernels.kernel_library import KernelLibrary, load_kernels


def find_kernels() -> KernelLibrary | None:
    try:
        return load_kernels()
    except KernelError:
        return None


FOUND = find_kernels()
needs_kernels = pytest.mark.skipif(FOUND is None, reason="needs a C++ compiler with OpenMP")


def native_kernels() -> KernelLibrary:
    assert FOUND is not None, "mark what calls this with needs_kernels"
    return FOUND
