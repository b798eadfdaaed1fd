"""Fills parameters and packed weights from stored tensors, several at once.

A weight that is packed is so as soon as a slice of its rows is there. Knows nothing of where
packed weights are kept (see `weight_cache`).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock

import torch
from torch import Tensor, nn

from nanoserve.kernels.packed_weight import PackedWeight
from nanoserve.plan.load_peak import COPY_THREADS, slice_rows, stage_bytes
from nanoserve.plan.weight_plan import PANEL_OUTPUTS, LinearFormat
from nanoserve.weights.float_reader import FloatReader
from nanoserve.weights.packing import RowFit, Stage
from nanoserve.weights.row_copy import Source, copy_rows


@dataclass(slots=True)
class ByteCount:
    """Tells how many bytes are done, in whichever thread they were.

    Attributes:
        total_bytes: In all.
        on_progress: Called with the bytes done and in all, never two calls at once.
    """

    total_bytes: int
    on_progress: Callable[[int, int], None] | None
    _done_bytes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, num_bytes: int) -> None:
        """Count so many more."""
        with self._lock:
            self._done_bytes += num_bytes
            if self.on_progress is not None:
                self.on_progress(self._done_bytes, self.total_bytes)


@dataclass(frozen=True, slots=True)
class Filler:
    """Fills the parameters that are not packed, and `weights`.

    Attributes:
        sources: The stored tensors of every parameter.
        parameters: By name.
        packed: The format of each that is packed.
        weights: What packed ones are filled into; those not here have their values.
        fits: What rows are fitted to 4 bits by, where any are.
    """

    sources: Mapping[str, list[Source]]
    parameters: Mapping[str, nn.Parameter]
    packed: Mapping[str, LinearFormat]
    weights: Mapping[str, PackedWeight]
    fits: Mapping[str, RowFit]

    def fill_all(self, count: ByteCount) -> None:
        """Fill everything, on several threads; each has room for one slice, taken once."""
        scratch_bytes = max(map(self._slice_bytes, self.weights), default=0)
        scratches: SimpleQueue[Tensor] = SimpleQueue()
        for _ in range(COPY_THREADS):
            scratches.put(torch.empty(scratch_bytes, dtype=torch.uint8))

        def fill(name: str) -> None:
            scratch = scratches.get()
            try:
                self._fill(name, scratch)
            finally:
                scratches.put(scratch)
            for source in self.sources[name]:
                count.add(source.tensor.num_bytes)

        with ThreadPoolExecutor(COPY_THREADS) as threads:
            for _ in threads.map(fill, self.sources):  # an error of one is raised here
                pass

    @torch.inference_mode()  # by thread; parameters made in this mode ask for it
    def _fill(self, name: str, scratch: Tensor) -> None:
        if name not in self.packed:
            FloatReader(self.sources).fill({name: self.parameters[name].detach()})
        elif name in self.weights:
            weight, fit = self.weights[name], self.fits.get(name, RowFit())
            _pack(self.packed[name], self.sources[name], weight, fit, scratch)

    def _slice_bytes(self, name: str) -> int:
        weight = self.weights[name]
        rows = max(_slice_size(source, weight) for source in self.sources[name])
        if _is_packed_at_once(self.sources[name]):
            rows = weight.out_size
        return stage_bytes(self.packed[name], rows, weight.in_size)


def stored_bytes(sources: list[Source]) -> int:
    """Return the bytes of a parameter's tensors in their files."""
    return sum(source.tensor.num_bytes for source in sources)


def _pack(
    one: LinearFormat, sources: list[Source], weight: PackedWeight, fit: RowFit, scratch: Tensor
) -> None:
    """Pack the rows of one weight in slices: what is not packed yet stays small."""
    if _is_packed_at_once(sources):
        _pack_at_once(one, sources, weight, fit, scratch)
        return
    for source in sources:
        num_rows, slice_size = source.target.shape[0], _slice_size(source, weight)
        for first in range(0, num_rows, slice_size):
            last = min(first + slice_size, num_rows)
            stage = Stage.carve(one, (last - first, weight.in_size), fit, scratch)
            copy_rows(source, stage.convert, stage.parts, first, last)
            stage.pack_into(weight, source.target.row_start + first)


def _is_packed_at_once(sources: list[Source]) -> bool:
    """Whether a tensor's rows begin within a panel."""
    return any(source.target.row_start % PANEL_OUTPUTS for source in sources)


def _slice_size(source: Source, weight: PackedWeight) -> int:
    num_rows, heads = source.target.shape[0], source.target.interleaved_heads
    return min(num_rows, slice_rows(weight.in_size, num_rows // heads if heads else 1))


def _pack_at_once(
    one: LinearFormat, sources: list[Source], weight: PackedWeight, fit: RowFit, scratch: Tensor
) -> None:
    stage = Stage.carve(one, (weight.out_size, weight.in_size), fit, scratch)
    for source in sources:
        start, num_rows = source.target.row_start, source.target.shape[0]
        rows = [part.narrow(0, start, num_rows) for part in stage.parts]
        copy_rows(source, stage.convert, rows)
    stage.pack_into(weight, 0)
