"""Which parameters are packed, and the way of their rows from a file into panels.

Rows come a piece at a time, are converted, and wait until their parameter, or a slice of
whole panels of it, is complete; then they are packed and given back. So memory holds the
packed weights and, beside them, no more than the slices that are being filled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.packed_weight import PackedWeight, pack, pack_int4, pack_int8
from nanoserve.kernels.panel_layout import PanelMemory
from nanoserve.kernels.panel_layout import WeightFormat as PackedFormat
from nanoserve.plan.load_peak import stage_bytes
from nanoserve.plan.weight_plan import PANEL_OUTPUTS, SCALE_BYTES, LinearFormat, WeightFormats
from nanoserve.units import ceil_div, round_up
from nanoserve.weights.dequant import dequantize
from nanoserve.weights.quantize import can_keep, quantize_rows, split_blocks

PART_ALIGNMENT = 64  # bytes; where `PanelMemory` begins each part
_HEAD = "lm_head.weight"


def packed_formats(model: nn.Module, formats: WeightFormats | None) -> dict[str, LinearFormat]:
    """Return the format of every parameter that is packed, by each name it has.

    The head is one, by the embedding's name too where they are tied; else so are the
    two-dimensional parameters of layers.

    Args:
        model: Its parameters may be on the meta device.
        formats: As planned; None packs nothing.
    """
    if formats is None:
        return {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    head = parameters[_HEAD]
    return {
        name: formats.head if parameter is head else formats.layers
        for name, parameter in parameters.items()
        if parameter is head or (parameter.ndim == 2 and name.startswith("layers."))
    }


def replace_parameters(
    model: nn.Module, parameters: dict[str, nn.Parameter], weights: dict[str, PackedWeight]
) -> None:
    """Put packed weights where parameters were, by every name these have.

    Args:
        model: Changed in place.
        parameters: Its parameters by all names.
        weights: Packed weights, each by one name.
    """
    by_parameter = {id(parameters[name]): weight for name, weight in weights.items()}
    for name, parameter in parameters.items():
        weight = by_parameter.get(id(parameter))
        if weight is None:
            continue
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        delattr(module, leaf)
        setattr(module, leaf, weight)


@dataclass(frozen=True, slots=True)
class RowFit:
    """What rows are fitted to 4 bits by.

    Attributes:
        importance: Of each input, [in]; None counts all the same.
        kernels: What fits them; None is torch.
    """

    importance: Tensor | None = None
    kernels: KernelLibrary | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows of a weight, converted but not packed yet.

    Attributes:
        one: The format.
        parts: A dense weight's values, or what `weights.quantize` makes; each by row.
        fit: What the rows are fitted to 4 bits by.
    """

    one: LinearFormat
    parts: tuple[Tensor, ...]
    fit: RowFit

    @classmethod
    def carve(
        cls, one: LinearFormat, shape: tuple[int, int], fit: RowFit, scratch: Tensor
    ) -> "Stage":
        """Return room for so many rows of so many inputs.

        Args:
            one: The format.
            shape: Rows and inputs.
            fit: What the rows are fitted by.
            scratch: uint8, whose first `plan.load_peak.stage_bytes` the room is.
        """
        rows, in_size = shape
        if not one.group_size:
            dtype: torch.dtype = getattr(torch, one.name)
            return cls(
                one, (scratch[: rows * in_size * dtype.itemsize].view(dtype).view(shape),), fit
            )
        num_values, scales_shape = rows * in_size, (rows, in_size // one.group_size)
        num_scales = 2 if one.name == "int4" else 1
        halves = scratch[num_values : stage_bytes(one, rows, in_size)].view(torch.float16)
        scales = halves.view(num_scales, *scales_shape).unbind()
        values = scratch[:num_values].view(torch.uint8 if one.name == "int4" else torch.int8)
        return cls(one, (values.view(shape), *scales), fit)

    def convert(self, raw: Tensor, type_name: str, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return rows of a file as this stage holds them; bits are kept where they can be."""
        if can_keep(type_name, self.one):
            return split_blocks(raw, type_name, shape)
        values = dequantize(raw, type_name).view(shape)
        if not self.one.group_size:
            return (values,)
        return quantize_rows(values, self.one, self.fit.importance, self.fit.kernels)

    def pack_into(self, weight: PackedWeight, first_row: int) -> None:
        """Write the rows into a weight's panels, from a whole panel on."""
        memory, (values, *scales) = _PanelRun(weight, first_row), self.parts
        if self.one.name == "int8":
            pack_int8(values, scales[0], memory)
        elif self.one.name == "int4":
            pack_int4(values, scales[0], scales[1], memory)
        else:
            pack(values, memory)


def allocate_weights(
    shapes: Mapping[str, tuple[int, ...]], formats: Mapping[str, LinearFormat]
) -> dict[str, PackedWeight]:
    """Return packed weights without values, by name, all in one piece of memory.

    Args:
        shapes: Outputs and inputs of each weight, in the order they are to lie.
        formats: Of each of them, at least.
    """
    sizes = {name: _part_sizes(formats[name], shape) for name, shape in shapes.items()}
    num_bytes = sum(round_up(size, PART_ALIGNMENT) for parts in sizes.values() for size in parts)
    memory = PanelMemory(num_bytes)
    weights = {}
    for name, (out_size, in_size) in shapes.items():
        one = formats[name]
        data, *scales = (memory.take(size) for size in sizes[name])
        halves: list[Tensor | None] = [
            part.view(torch.float16).view(-1, in_size // one.group_size, PANEL_OUTPUTS)
            for part in scales
        ]
        scale, minimum = (*halves, None, None)[:2]
        form = cast("PackedFormat", one.name)
        group_size = one.group_size or in_size
        weights[name] = PackedWeight(form, out_size, in_size, data, scale, minimum, group_size)
    return weights


def _part_sizes(one: LinearFormat, shape: tuple[int, ...]) -> list[int]:
    """Return the bytes of a packed weight's data, then of its scales and minimums."""
    out_size, in_size = shape
    num_panels = ceil_div(out_size, PANEL_OUTPUTS)
    num_scales = {"int8": 1, "int4": 2}.get(one.name, 0)
    if not num_scales:
        return [one.num_bytes(out_size, in_size)]
    scale_bytes = num_panels * PANEL_OUTPUTS * (in_size // one.group_size) * SCALE_BYTES
    data_bytes = one.num_bytes(out_size, in_size) - num_scales * scale_bytes
    return [data_bytes, *[scale_bytes] * num_scales]


class _PanelRun:
    """A weight's own memory, from a row that begins a panel on; see `ByteSource`.

    Panels follow each other, so rows that are whole panels are a run of the weight's bytes.
    """

    def __init__(self, weight: PackedWeight, first_row: int) -> None:
        first_panel = first_row // PANEL_OUTPUTS
        num_panels = ceil_div(weight.out_size, PANEL_OUTPUTS)
        parts = (weight.data, weight.scales, weight.minimums)
        self._runs = iter(
            part.view(torch.uint8).view(num_panels, -1)[first_panel:].flatten()
            for part in parts
            if part is not None
        )

    def take(self, num_bytes: int) -> Tensor:
        """Return the first bytes of the next part: values, then scales, then minimums."""
        return next(self._runs)[:num_bytes]
