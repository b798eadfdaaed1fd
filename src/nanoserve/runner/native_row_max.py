"""`NativeRowMax`: the likeliest token of each row, by the CPU's native operators."""

from array import array

import torch
from torch import Tensor

from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.op_args import RowMaxArgs


class NativeRowMax:
    """The sampler's `RowMax` of logits on the CPU."""

    def __init__(self, kernels: KernelLibrary) -> None:
        self._kernels = kernels

    def __call__(self, logits: Tensor) -> tuple[list[float], list[int]]:
        """Return the largest of each row, and the first place it has.

        Args:
            logits: float32 [R, V], contiguous.
        """
        num_rows, size = logits.shape
        maxima, places = array("f", bytes(4 * num_rows)), array("q", bytes(8 * num_rows))
        pointers = (logits.data_ptr(), maxima.buffer_info()[0], places.buffer_info()[0])
        num_threads = min(num_rows, torch.get_num_threads())
        self._kernels.run(RowMaxArgs(*pointers, num_rows, size), num_threads)
        return maxima.tolist(), places.tolist()
