"""Rows of a packed weight: what an embedding reads that is the output head as well.

Knows the layout of `csrc/panels.h`, as `packed_weight` does.
"""

import torch
from torch import Tensor

from nanoserve.kernels.packed_weight import PackedWeight

_PANEL_OUTPUTS = 32  # as `csrc/panels.h`


def gather_rows(weight: PackedWeight, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return some rows of a packed weight as plain values.

    Args:
        weight: [out, in].
        rows: int64 [T], each under `out`.
        dtype: Of the result; a dense weight has it already.

    Returns:
        [T, in].
    """
    panels, places = rows // _PANEL_OUTPUTS, rows % _PANEL_OUTPUTS
    items = _split_panels(weight)[panels, :, places]  # [T, items, inputs of an item]
    if weight.scales is None:
        return items.view(dtype).flatten(1)[:, : weight.in_size]
    if weight.format == "int4":
        items = torch.cat((items & 15, items >> 4), dim=2)
        values = items.flatten(1)[:, : weight.in_size].float()
    else:
        values = items.flatten(1)[:, : weight.in_size].float() - 128.0
    scales = _groups(weight, weight.scales)[panels, :, places]  # [T, groups]
    grouped = values.view(len(rows), scales.shape[1], -1) * scales[..., None].float()
    if weight.minimums is not None:
        grouped += _groups(weight, weight.minimums)[panels, :, places][..., None].float()
    return grouped.flatten(1).to(dtype)


def _split_panels(weight: PackedWeight) -> Tensor:
    """Return the data as uint8 [panels, items, outputs of a panel, bytes of an item]."""
    item_bytes = 2 if weight.format == "float16" else 4
    num_panels = -(-weight.out_size // _PANEL_OUTPUTS)
    return weight.data.view(num_panels, -1, _PANEL_OUTPUTS, item_bytes)


def _groups(weight: PackedWeight, scales: Tensor) -> Tensor:
    num_panels = -(-weight.out_size // _PANEL_OUTPUTS)
    return scales.view(num_panels, -1, _PANEL_OUTPUTS)
