"""Streams a checkpoint's tensors into a model's parameters.

The file is mapped, and each tensor is copied in pieces of a few MiB, cast or dequantised on
the way; the pages of a finished piece are given back at once. So resident memory never holds
a second copy of the weights, whatever the size of the file or of its largest tensor.
"""

import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor, nn

from nanoserve.errors import InvariantError, UnsupportedModelError, WeightMismatchError
from nanoserve.spec.checkpoint import Checkpoint
from nanoserve.units import MIB
from nanoserve.weights.dequant import check_type, dequantize
from nanoserve.weights.name_map import Target, gguf_targets, hf_targets, is_ignorable

_PIECE_BYTES = 4 * MIB  # of the file; larger pieces were not faster
_PIECE_ITEMS = MIB  # dequantised values; 4 MiB of float32 stay in a core's cache
_COPY_THREADS = 2  # tensors copied at once; first touches of memory are what they wait for
_SAFETENSORS_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was loaded: checkpoint tensors copied, and bytes of the parameters they fill."""

    num_tensors: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor in a file: bytes `start` to `end`, in the format `type_name`."""

    name: str
    path: Path
    shape: tuple[int, ...]
    type_name: str
    start: int
    end: int


def load_weights(
    model: nn.Module,
    checkpoint: Checkpoint,
    on_progress: Callable[[int, int], None] | None = None,
) -> LoadReport:
    """Fill a model's parameters from a checkpoint.

    Args:
        model: Its parameters have memory (see `placement`); they are overwritten.
        checkpoint: Its spec describes `model`.
        on_progress: Called after each tensor with the file bytes done and in all.

    Raises:
        WeightMismatchError: Tensors are missing, left over or misshapen; nothing was copied.
        UnsupportedModelError: A tensor's format cannot be read; nothing was copied.
        InvariantError: The model is not the one the spec describes, or has no memory yet.
    """
    is_gguf = checkpoint.gguf is not None
    targets = (gguf_targets if is_gguf else hf_targets)(checkpoint.spec)
    stored = _list_stored(checkpoint)
    _check_tensors(checkpoint, targets, stored)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    _check_parameters(parameters, targets)
    wanted = [tensor for tensor in stored if tensor.name in targets]
    with _one_thread():
        _copy_all(wanted, targets, parameters, on_progress)
    filled = {id(parameter): parameter.nbytes for parameter in parameters.values()}
    return LoadReport(num_tensors=len(wanted), weight_bytes=sum(filled.values()))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run each torch operation on one thread, then as before.

    Operations this small gain nothing from a second thread; whole tensors side by side do.
    Measured, one tensor at a time: SmolLM2-135M loads in 0.35 s on one thread of an idle machine; beside another
    process that keeps both cores busy it takes 2.3 s on one thread and 12.9 s on two.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _list_stored(checkpoint: Checkpoint) -> list[_Stored]:
    """Return the tensors of all files, in the order they lie."""
    if checkpoint.gguf is not None:
        path = checkpoint.gguf.path
        tensors = sorted(checkpoint.gguf.tensors.values(), key=lambda tensor: tensor.offset)
        return [
            _Stored(t.name, path, t.shape, t.type_name, t.offset, t.offset + t.num_bytes)
            for t in tensors
        ]
    return [
        _Stored(name, path, entry.shape, entry.dtype, entry.start, entry.end)
        for path, entries in checkpoint.shards.items()
        for name, entry in entries.items()
    ]


def _check_tensors(
    checkpoint: Checkpoint, targets: dict[str, Target], stored: list[_Stored]
) -> None:
    """Refuse a checkpoint that is not the model's, before anything is copied."""
    shapes = {tensor.name: tensor.shape for tensor in stored}
    missing = tuple(name for name in targets if name not in shapes)
    unexpected = tuple(
        name for name in shapes if name not in targets and not is_ignorable(name, checkpoint.spec)
    )
    misshapen = tuple(
        f"{name} is {list(shapes[name])}, expected {list(target.shape)}"
        for name, target in targets.items()
        if name in shapes and shapes[name] != target.shape
    )
    if missing or unexpected or misshapen:
        raise WeightMismatchError(str(checkpoint.source.path), missing, unexpected, misshapen)
    for tensor in stored:
        if tensor.name in targets:
            _check_format(tensor, is_gguf=checkpoint.gguf is not None)


def _check_format(tensor: _Stored, is_gguf: bool) -> None:
    where = f"Tensor {tensor.name} in {tensor.path}"
    if is_gguf:
        check_type(tensor.type_name, where)
    elif tensor.type_name not in _SAFETENSORS_TYPES:
        what = f"{where} has dtype {tensor.type_name}; quantised safetensors cannot be read."
        raise UnsupportedModelError(what, _SAFETENSORS_TYPES)


def _check_parameters(parameters: dict[str, nn.Parameter], targets: dict[str, Target]) -> None:
    """Check that the targets fill every row of every parameter, tied ones by either name."""
    rows_filled = dict.fromkeys((id(parameter) for parameter in parameters.values()), 0)
    for target in targets.values():
        parameter = parameters.get(target.parameter)
        if parameter is None or parameter.shape[1:] != target.shape[1:]:
            message = f"The model has no parameter {target.parameter} for a {target.shape} tensor."
            raise InvariantError(message)
        rows_filled[id(parameter)] += target.shape[0]
    for name, parameter in parameters.items():
        if rows_filled[id(parameter)] != parameter.shape[0] or parameter.is_meta:
            message = (
                f"Parameter {name} ({parameter.device}) has {parameter.shape[0]} rows, and the "
                f"checkpoint fills {rows_filled[id(parameter)]}."
            )
            raise InvariantError(message)


def _copy_all(
    wanted: list[_Stored],
    targets: dict[str, Target],
    parameters: dict[str, nn.Parameter],
    on_progress: Callable[[int, int], None] | None,
) -> None:
    total_bytes = sum(tensor.end - tensor.start for tensor in wanted)
    done_bytes = 0

    @torch.inference_mode()  # by thread; parameters made in this mode ask for it
    def copy(file: _MappedFile, tensor: _Stored) -> int:
        target = targets[tensor.name]
        rows = parameters[target.parameter].detach().narrow(0, target.row_start, target.shape[0])
        _copy_tensor(file, tensor, target, rows)
        return tensor.end - tensor.start

    for path, tensors in groupby(wanted, key=lambda tensor: tensor.path):
        file = _MappedFile(path)  # one mapping at a time
        with ThreadPoolExecutor(_COPY_THREADS) as threads:
            for num_bytes in threads.map(partial(copy, file), tensors):
                done_bytes += num_bytes
                if on_progress is not None:
                    on_progress(done_bytes, total_bytes)


def _copy_tensor(file: "_MappedFile", tensor: _Stored, target: Target, rows: Tensor) -> None:
    """Copy one tensor into `rows`, piece by piece."""
    num_rows, num_bytes = target.shape[0], tensor.end - tensor.start
    head_rows = num_rows // target.interleaved_heads if target.interleaved_heads else 1
    for first, last in _pieces(target.shape, num_bytes, head_rows):
        start = tensor.start + num_bytes * first // num_rows
        end = tensor.start + num_bytes * last // num_rows
        values = dequantize(file.read(start, end), tensor.type_name)
        piece = values.view(last - first, *target.shape[1:])
        if target.interleaved_heads:
            _copy_deinterleaved(rows[first:last], piece, head_rows)
        else:
            rows[first:last].copy_(piece)
        file.release(start, end)


def _pieces(shape: tuple[int, ...], num_bytes: int, head_rows: int) -> Iterator[tuple[int, int]]:
    """Cut rows into half-open ranges of bounded bytes and values, whole heads each.

    A tensor of one dimension is one piece: it is small, and its blocks span what are rows here.
    """
    num_rows = shape[0]
    if len(shape) == 1:
        yield 0, num_rows
        return
    fitting_rows = min(_PIECE_BYTES * num_rows // num_bytes, _PIECE_ITEMS // shape[1])
    piece_rows = max(1, fitting_rows // head_rows) * head_rows
    for first in range(0, num_rows, piece_rows):
        yield first, min(first + piece_rows, num_rows)


def _copy_deinterleaved(rows: Tensor, values: Tensor, head_rows: int) -> None:
    """Copy whole heads, undoing llama.cpp's order of the rows in each.

    ```
    row in the file    0  1  2  3  ...  D-2  D-1
    row in the model   0 D/2 1 D/2+1 ... D/2-1 D-1
    ```

    Source: `_reverse_permute_weights` in transformers 5.24, modeling_gguf_pytorch_utils.py.
    """
    columns = values.shape[1:]
    in_file = values.reshape(-1, head_rows // 2, 2, *columns)
    rows.view(-1, 2, head_rows // 2, *columns).copy_(in_file.transpose(1, 2))


class _MappedFile:
    """A file's bytes as tensors that borrow them, and the pages given back after use."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            # A private writable mapping: torch warns of read-only buffers. Nothing is written.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def read(self, start: int, end: int) -> Tensor:
        """Return bytes `start` to `end` as uint8, borrowed from the mapping."""
        return torch.frombuffer(self._map, dtype=torch.uint8, count=end - start, offset=start)

    def release(self, start: int, end: int) -> None:
        """Let the pages of a range leave memory; the last, partial one stays for its neighbour."""
        first_page = start - start % mmap.PAGESIZE
        num_bytes = end - end % mmap.PAGESIZE - first_page
        if num_bytes > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first_page, num_bytes)
