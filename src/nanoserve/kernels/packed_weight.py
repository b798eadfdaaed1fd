"""`PackedWeight`: a weight in the panels that native products read, and the ways to make one.

Owns what the bytes stand for and how the integers are chosen. Knows nothing of models or
files. Read next: `panel_layout`, `csrc/panels.h`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoserve.errors import KernelError
from nanoserve.kernels.panel_layout import (
    ITEM_BYTES,
    ITEM_INPUTS,
    PANEL_OUTPUTS,
    ByteSource,
    PanelMemory,
    WeightFormat,
    packed_bytes,
    scale_panels,
    to_panels,
)
from nanoserve.kernels.row_quantizer import quantize_int4_rows, quantize_int8_rows
from nanoserve.units import ceil_div, round_up

__all__ = [
    "PackedWeight",
    "PanelMemory",
    "activation_group_size",
    "gather_rows",
    "pack",
    "pack_int4",
    "pack_int8",
    "packed_bytes",
    "quantize_int4",
    "quantize_int8",
    "scratch_bytes",
    "unpack",
]

GROUP_MULTIPLE = 32  # inputs; a group of all inputs may be ragged
MAX_ACTIVATION_GROUP = 128  # inputs of a row that share an 8-bit scale
BLOCK_BYTES = 12  # `Block` of `csrc/linear_quantized.cpp`
INT8_OFFSET = 128  # an int8 weight is stored so far above its value
_WORDS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight, [out_size, in_size], in panels.

    Attributes:
        format: How its values are stored.
        out_size: Outputs; those that fill up the last panel are not counted.
        in_size: Inputs.
        data: uint8, the panels one after the other.
        scales: float16 [panels, groups, PANEL_OUTPUTS]; None unless int8 or int4.
        minimums: float16, as `scales`; None unless int4. A weight is its value times the
            scale, plus the minimum.
        group_size: Inputs that share a scale; `in_size` for one per output.
    """

    format: WeightFormat
    out_size: int
    in_size: int
    data: Tensor
    scales: Tensor | None
    minimums: Tensor | None
    group_size: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors; what `packed_bytes` says."""
        parts = (self.data, self.scales, self.minimums)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)

    @property
    def dtype(self) -> torch.dtype | None:
        """What its values are; None if they are integers with a scale."""
        return None if self.scales is not None else getattr(torch, self.format)


def activation_group_size(group_size: int) -> int:
    """Return how many inputs of a row share a scale where so many of a weight do.

    The largest divisor up to MAX_ACTIVATION_GROUP that is made of whole items.
    """
    fitting = range(GROUP_MULTIPLE, MAX_ACTIVATION_GROUP + 1, GROUP_MULTIPLE)
    return max((size for size in fitting if group_size % size == 0), default=group_size)


def scratch_bytes(weight: PackedWeight, num_rows: int) -> int:
    """Return the bytes a native product of so many rows needs for quantized activations."""
    if weight.scales is None:
        return 0
    num_blocks = weight.in_size // activation_group_size(weight.group_size)
    return num_rows * (round_up(weight.in_size, 64) + BLOCK_BYTES * num_blocks)


def pack(weight: Tensor, memory: ByteSource | None = None) -> PackedWeight:
    """Pack [out_size, in_size] of a float dtype, losing nothing.

    Args:
        weight: float32, bfloat16 or float16.
        memory: Where the panels go; None for memory of their own, as in all functions here.

    Raises:
        KernelError: Another dtype.
    """
    name = str(weight.dtype).rpartition(".")[2]
    if name not in ("float32", "bfloat16", "float16"):
        message = f"A weight of {name} cannot be packed. float32, bfloat16 and float16 can be."
        raise KernelError(message)
    format: WeightFormat = name  # type: ignore[assignment]
    out_size, in_size = weight.shape
    padded = _padded(weight, ITEM_INPUTS[format])
    data = to_panels(padded.view(_WORDS[ITEM_BYTES[format]]), memory)
    return PackedWeight(format, out_size, in_size, data, None, None, in_size)


def pack_int8(values: Tensor, scales: Tensor, memory: ByteSource | None = None) -> PackedWeight:
    """Pack int8 [out_size, in_size] with a scale, [out_size, groups], for each group of inputs.

    Raises:
        KernelError: Groups are neither everything nor multiples of GROUP_MULTIPLE.
    """
    out_size, in_size = values.shape
    group_size = _group_size(in_size, scales)
    padded = _padded(values, ITEM_INPUTS["int8"])
    stored = padded.view(torch.uint8) ^ INT8_OFFSET  # adds it, in two's complement
    data = to_panels(stored.view(torch.int32), memory)
    return PackedWeight(
        "int8", out_size, in_size, data, scale_panels(scales, memory), None, group_size
    )


def pack_int4(
    values: Tensor, scales: Tensor, minimums: Tensor, memory: ByteSource | None = None
) -> PackedWeight:
    """Pack values of 0 to 15, uint8 [out_size, in_size], with a scale and a minimum per group.

    Raises:
        KernelError: Groups are neither everything nor multiples of GROUP_MULTIPLE.
    """
    out_size, in_size = values.shape
    group_size = _group_size(in_size, scales)
    items = _padded(values, ITEM_INPUTS["int4"]).view(out_size, -1, 2, 4)
    stored = (items[:, :, 0] | items[:, :, 1] << 4).contiguous()
    data = to_panels(stored.view(torch.int32).view(out_size, -1), memory)
    panels = scale_panels(scales, memory), scale_panels(minimums, memory)
    return PackedWeight("int4", out_size, in_size, data, *panels, group_size)


def quantize_int8(
    weight: Tensor, group_size: int, memory: ByteSource | None = None
) -> PackedWeight:
    """Quantize a float weight, [out_size, in_size], to -127..127 with a scale per group.

    Args:
        weight: Any float dtype.
        group_size: Inputs that share a scale; `in_size` for one per output.
        memory: Where the panels go.

    Raises:
        KernelError: The group is neither everything nor a divisor in multiples of 32.
    """
    _check_groups(weight.shape[1], group_size)
    values, scales = quantize_int8_rows(weight, group_size)
    return pack_int8(values, scales, memory)


def quantize_int4(
    weight: Tensor, group_size: int = 32, memory: ByteSource | None = None
) -> PackedWeight:
    """Quantize a float weight, [out_size, in_size], to 0..15 with scale and minimum per group.

    How they are chosen is in `row_quantizer`.

    Raises:
        KernelError: The group is neither everything nor a divisor in multiples of 32.
    """
    _check_groups(weight.shape[1], group_size)
    values, scales, minimums = quantize_int4_rows(weight, group_size)
    return pack_int4(values, scales, minimums, memory)


def unpack(weight: PackedWeight) -> Tensor:
    """Return what a weight stands for, float32 [out_size, in_size]."""
    return gather_rows(weight, torch.arange(weight.out_size))


def gather_rows(weight: PackedWeight, ids: Tensor) -> Tensor:
    """Return rows of what a weight stands for: int64 [any] to float32 [any, in_size]."""
    panel, lane = ids // PANEL_OUTPUTS, ids % PANEL_OUTPUTS
    item_bytes = ITEM_BYTES[weight.format]
    num_panels = ceil_div(weight.out_size, PANEL_OUTPUTS)
    words = weight.data.view(_WORDS[item_bytes]).view(num_panels, -1, PANEL_OUTPUTS)
    row_words = words[panel, :, lane].contiguous()
    if weight.dtype is not None:
        return row_words.view(weight.dtype)[:, : weight.in_size].float()
    stored = row_words.view(torch.uint8)
    if weight.format == "int8":
        values = stored.float() - INT8_OFFSET
    else:
        quads = stored.view(len(ids), -1, 4)
        values = torch.stack((quads & 15, quads >> 4), dim=2).flatten(1).float()
    groups = values[:, : weight.in_size].reshape(len(ids), -1, weight.group_size)
    assert weight.scales is not None  # noqa: S101 (integers have scales)
    groups = groups * weight.scales[panel, :, lane].float()[:, :, None]
    if weight.minimums is not None:
        groups = groups + weight.minimums[panel, :, lane].float()[:, :, None]
    return groups.flatten(1)


def _padded(rows: Tensor, multiple: int) -> Tensor:
    """Return rows of whole items, filled up with zeros; not copied where they are so already."""
    missing = -rows.shape[1] % multiple
    return (F.pad(rows, (0, missing)) if missing else rows).contiguous()


def _group_size(in_size: int, scales: Tensor) -> int:
    num_groups = scales.shape[1]
    group_size = in_size // num_groups
    is_whole = group_size * num_groups == in_size
    if not is_whole or (num_groups > 1 and group_size % GROUP_MULTIPLE):
        message = (
            f"{num_groups} scales for {in_size} inputs make no groups of a multiple of "
            f"{GROUP_MULTIPLE}. Use one scale per output, or another group size."
        )
        raise KernelError(message)
    return group_size


def _check_groups(in_size: int, group_size: int) -> None:
    if in_size % group_size or (group_size != in_size and group_size % GROUP_MULTIPLE):
        message = (
            f"Groups of {group_size} cannot share scales: they must be a multiple of "
            f"{GROUP_MULTIPLE} that divides the {in_size} inputs, or all of them."
        )
        raise KernelError(message)
