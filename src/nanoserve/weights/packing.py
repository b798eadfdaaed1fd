"""Which parameters are packed, and the way of their rows from a file into panels.

Rows come a piece at a time, are converted, and wait until their parameter, or a slice of
whole panels of it, is complete; then they are packed and given back. So memory holds the
packed weights and, beside them, no more than the slices that are being filled.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nanoserve.kernels.packed_weight import PackedWeight, pack, pack_int4, pack_int8
from nanoserve.plan.weight_plan import PANEL_OUTPUTS, LinearFormat, WeightFormats
from nanoserve.units import MIB, ceil_div
from nanoserve.weights.dequant import dequantize
from nanoserve.weights.quantize import can_keep, quantize_rows, split_blocks

_HEAD = "lm_head.weight"
_SLICE_VALUES = 4 * MIB  # of a large weight packed at once


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


def slice_rows(in_size: int) -> int:
    """Return how many rows of a weight are packed at once: whole panels, a few MiB."""
    return max(1, _SLICE_VALUES // in_size // PANEL_OUTPUTS) * PANEL_OUTPUTS


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows of a weight, converted but not packed yet.

    Attributes:
        one: The format.
        parts: A dense weight's values, or what `weights.quantize` makes; each by row.
    """

    one: LinearFormat
    parts: tuple[Tensor, ...]

    @classmethod
    def allocate(cls, one: LinearFormat, shape: tuple[int, ...]) -> "Stage":
        """Return room for so many rows of so many inputs."""
        rows, in_size = shape
        if not one.group_size:
            return cls(one, (torch.empty(shape, dtype=getattr(torch, one.name)),))
        scales_shape = (rows, in_size // one.group_size)
        scales = [torch.empty(scales_shape, dtype=torch.float16) for _ in range(2)]
        if one.name == "int8":
            return cls(one, (torch.empty(shape, dtype=torch.int8), scales[0]))
        return cls(one, (torch.empty(shape, dtype=torch.uint8), *scales))

    def convert(self, raw: Tensor, type_name: str, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return rows of a file as this stage holds them; bits are kept where they can be."""
        if can_keep(type_name, self.one):
            return split_blocks(raw, type_name, shape)
        values = dequantize(raw, type_name).view(shape)
        if not self.one.group_size:
            return (values,)
        return quantize_rows(values, self.one)

    def pack(self) -> PackedWeight:
        """Return the rows in panels."""
        if self.one.name == "int8":
            return pack_int8(*self.parts)
        if self.one.name == "int4":
            return pack_int4(*self.parts)
        return pack(*self.parts)


def join_slices(num_rows: int, slices: Iterable[PackedWeight]) -> PackedWeight:
    """Return the weight whose rows the slices are, in order; each is dropped once copied.

    Panels follow each other, so a slice of whole panels is a run of the weight's bytes.
    """
    whole: PackedWeight | None = None
    panel = 0
    for part in slices:
        if part.out_size == num_rows:
            return part
        if whole is None:
            whole = _allocate_like(part, num_rows)
        for into, values in zip(_panels(whole), _panels(part), strict=True):
            into[panel : panel + len(values)] = values
        panel += ceil_div(part.out_size, PANEL_OUTPUTS)
    assert whole is not None, "a weight has at least one row"  # noqa: S101
    return whole


def _allocate_like(part: PackedWeight, num_rows: int) -> PackedWeight:
    num_panels = ceil_div(num_rows, PANEL_OUTPUTS)
    data, *scales = (
        torch.empty(num_panels * values.shape[1], dtype=values.dtype) for values in _panels(part)
    )
    scales += [None] * (2 - len(scales))
    return replace(part, out_size=num_rows, data=data, scales=scales[0], minimums=scales[1])


def _panels(weight: PackedWeight) -> list[Tensor]:
    """Return what a weight consists of, each as [panels, values of a panel]."""
    num_panels = ceil_div(weight.out_size, PANEL_OUTPUTS)
    parts = (weight.data, weight.scales, weight.minimums)
    return [part.view(num_panels, -1) for part in parts if part is not None]
