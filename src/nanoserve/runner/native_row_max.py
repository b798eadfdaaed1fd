"""`NativeRowMax`: the likeliest token of each row, by the CPU's native operators."""

import torch
from torch import Tensor

from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.op_args import RowMaxArgs


class NativeRowMax:
    """The sampler's `RowMax` of logits on the CPU."""

    def __init__(self, kernels: KernelLibrary) -> None:
        self._kernels = kernels

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest of each row, float32 [R], and the first place it has, int64 [R].

        Args:
            logits: float32 [R, V], contiguous.
        """
        num_rows, size = logits.shape
        maxima, places = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
        pointers = (logits.data_ptr(), maxima.data_ptr(), places.data_ptr())
        num_threads = min(num_rows, torch.get_num_threads())
        self._kernels.run(RowMaxArgs(*pointers, num_rows, size), num_threads)
        return maxima, places
