"""`new_result`: the tensors that native operators write their results to."""

import torch
from torch import Tensor

from nanoserve.kernels.kernel_library import KernelLibrary


def new_result(kernels: KernelLibrary, *shape: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor of any content, which `kernels` knows of if it records."""
    result = torch.empty(shape, dtype=dtype)
    kernels.note_result(result.data_ptr(), result.nbytes, result)
    return result
