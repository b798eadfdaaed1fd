"""Rows of stored tensors to where they belong, a piece of a few MiB at a time.

The pages of a finished piece are given back at once, and llama.cpp's order of the rows of
a head is undone on the way.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from nanoserve.plan.load_peak import PIECE_VALUES
from nanoserve.units import MIB
from nanoserve.weights.name_map import Target
from nanoserve.weights.tensor_file import MappedFile, StoredTensor

_PIECE_BYTES = 4 * MIB  # of the file; larger pieces were not faster

Convert = Callable[[Tensor, str, tuple[int, ...]], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Source:
    """One stored tensor: where it lies, and which rows of which parameter it fills."""

    file: MappedFile
    tensor: StoredTensor
    target: Target


def copy_rows(
    source: Source,
    convert: Convert,
    into: Sequence[Tensor],
    first: int = 0,
    last: int | None = None,
) -> None:
    """Copy rows of a stored tensor, converted.

    Args:
        source: The tensor.
        convert: From uint8 bytes of the file, the format's name and the shape they have, to
            one tensor of that many rows for each of `into`.
        into: What is written, each with a row for each row copied.
        first: First row; whole heads, where heads are put in order.
        last: One past the last row; None copies to the end.
    """
    target, tensor = source.target, source.tensor
    num_rows = target.shape[0]
    head_rows = num_rows // target.interleaved_heads if target.interleaved_heads else 1
    wanted = range(first, num_rows if last is None else last)
    for start_row, end_row in _pieces(wanted, target.shape, tensor.num_bytes, head_rows):
        start = tensor.start + tensor.num_bytes * start_row // num_rows
        end = tensor.start + tensor.num_bytes * end_row // num_rows
        shape = (end_row - start_row, *target.shape[1:])
        pieces = convert(source.file.read(start, end), tensor.type_name, shape)
        for rows, piece in zip(into, pieces, strict=True):
            placed = rows[start_row - first : end_row - first]
            if target.interleaved_heads:
                _copy_deinterleaved(placed, piece, head_rows)
            else:
                placed.copy_(piece)
        source.file.release(start, end)


def _pieces(
    wanted: range, shape: tuple[int, ...], num_bytes: int, head_rows: int
) -> Iterator[tuple[int, int]]:
    """Cut rows into half-open ranges of bounded bytes and values, whole heads each.

    A tensor of one dimension is one piece: it is small, and its blocks span what are rows here.
    """
    num_rows = shape[0]
    if len(shape) == 1:
        yield wanted.start, wanted.stop
        return
    fitting_rows = min(_PIECE_BYTES * num_rows // num_bytes, PIECE_VALUES // shape[1])
    piece_rows = max(1, fitting_rows // head_rows) * head_rows
    for first in range(wanted.start, wanted.stop, piece_rows):
        yield first, min(first + piece_rows, wanted.stop)


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
