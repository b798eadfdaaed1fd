"""Panels: how a packed weight lies in memory, on this side; `csrc/panels.h` draws it.

The layout is the same in every build of the operators. Owns the bytes and their order;
knows nothing of what they stand for (see `packed_weight`).
"""

import contextlib
import mmap
from typing import Literal, Protocol

import torch
from torch import Tensor

from nanoserve.errors import KernelError
from nanoserve.units import MIB, ceil_div, round_up

WeightFormat = Literal["float32", "bfloat16", "float16", "int8", "int4"]

PANEL_OUTPUTS = 32
SCALE_BYTES = 2  # float16
HUGE_PAGE_BYTES = 2 * MIB

# An item is what a vector lane takes at once for one output: some inputs, in some bytes.
ITEM_INPUTS = {"float32": 1, "float16": 1, "bfloat16": 2, "int8": 4, "int4": 8}
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 4, "int8": 4, "int4": 4}


class ByteSource(Protocol):
    """Gives memory for panels, and for their scales and minimums, in the order they are packed."""

    def take(self, num_bytes: int) -> Tensor:
        """Return uint8 of that many bytes, the caller's own."""
        ...


class PanelMemory:
    """Memory for many weights in one piece, of huge pages where the system has them.

    Reading weights in pages of 4 KiB is bound by address translation. Measured: EPYC Zen 4,
    2 threads, SmolLM2's 269 MB of bfloat16 at one row: 9.5 ms in small pages, about 8 in huge ones.
    """

    def __init__(self, num_bytes: int) -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared ones are another's to count
        length = round_up(num_bytes, HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES
        pages = mmap.mmap(-1, length, flags=private)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them says so
                pages.madvise(mmap.MADV_HUGEPAGE)
        memory = torch.frombuffer(pages, dtype=torch.uint8)
        skipped = -memory.data_ptr() % HUGE_PAGE_BYTES
        self._free = memory[skipped : skipped + num_bytes]

    def take(self, num_bytes: int) -> Tensor:
        """Return bytes of its own for the caller, begun at a cache line.

        Raises:
            KernelError: So many are not left.
        """
        if num_bytes > self._free.numel():
            message = f"{num_bytes} bytes of weights do not fit the {self._free.numel()} left"
            raise KernelError(message)
        taken, self._free = self._free[:num_bytes], self._free[round_up(num_bytes, 64) :]
        return taken


def packed_bytes(out_size: int, in_size: int, format: WeightFormat, group_size: int) -> int:
    """Return the bytes of a packed weight, padding, scales and minimums included."""
    num_panels = ceil_div(out_size, PANEL_OUTPUTS)
    item_bytes = ceil_div(in_size, ITEM_INPUTS[format]) * ITEM_BYTES[format]
    num_scales = {"int8": 1, "int4": 2}.get(format, 0) * (in_size // group_size)
    return num_panels * PANEL_OUTPUTS * (item_bytes + num_scales * SCALE_BYTES)


def to_panels(words: Tensor, memory: ByteSource | None) -> Tensor:
    """Return [out_size, items] as uint8 of [panels, items, PANEL_OUTPUTS]."""
    out_size, num_items = words.shape
    num_panels = ceil_div(out_size, PANEL_OUTPUTS)
    num_bytes = num_panels * PANEL_OUTPUTS * num_items * words.element_size()
    data = torch.empty(num_bytes, dtype=torch.uint8) if memory is None else memory.take(num_bytes)
    panels = data.view(words.dtype).view(num_panels, num_items, PANEL_OUTPUTS)
    whole = out_size // PANEL_OUTPUTS
    by_panel = words[: whole * PANEL_OUTPUTS].view(whole, PANEL_OUTPUTS, num_items)
    panels[:whole].copy_(by_panel.transpose(1, 2))
    if whole < num_panels:
        rest = out_size - whole * PANEL_OUTPUTS
        panels[whole].zero_()
        panels[whole, :, :rest].copy_(words[whole * PANEL_OUTPUTS :].t())
    return data


def scale_panels(scales: Tensor, memory: ByteSource | None) -> Tensor:
    """Return [out_size, groups] as float16 [panels, groups, PANEL_OUTPUTS]."""
    words = scales.half().contiguous().view(torch.int16)
    return to_panels(words, memory).view(torch.float16).view(-1, scales.shape[1], PANEL_OUTPUTS)
