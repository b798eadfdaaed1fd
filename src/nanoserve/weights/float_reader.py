"""A checkpoint's tensors as values, some parameters at a time, none of them kept."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nanoserve.weights.dequant import dequantize
from nanoserve.weights.row_copy import Source, copy_rows


class FloatReader:
    """Reads whole parameters, or rows of one."""

    def __init__(
        self,
        sources: Mapping[str, list[Source]],
        on_read: Callable[[int], None] | None = None,
    ) -> None:
        """Remember where parameters lie.

        Args:
            sources: The stored tensors of each parameter.
            on_read: Called after each whole parameter with its bytes in the files.
        """
        self._sources = sources
        self._on_read = on_read

    def fill(self, parameters: Mapping[str, Tensor]) -> None:
        """Overwrite tensors of any float dtype, by the parameters' names."""
        for name, values in parameters.items():
            for source in self._sources[name]:
                target = source.target
                copy_rows(source, _values, (values.narrow(0, target.row_start, target.shape[0]),))
                if self._on_read is not None:
                    self._on_read(source.tensor.num_bytes)

    def rows(self, name: str, ids: Sequence[int]) -> Tensor:
        """Return rows of a parameter that one tensor holds, float32 [len(ids), columns]."""
        (source,) = self._sources[name]
        rows = torch.empty(len(ids), source.target.shape[1])
        for row, index in zip(rows, ids, strict=True):
            copy_rows(source, _values, (row[None],), index, index + 1)
        return rows


def _values(raw: Tensor, type_name: str, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    return (dequantize(raw, type_name).view(shape),)
