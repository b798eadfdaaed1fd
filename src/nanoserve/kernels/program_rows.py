"""`ProgramRows`: how many rows a recorded program goes over, changed between two runs.

A row of a result depends on no other row, and rows lie one behind the other: recorded for the
most rows there will be, a program does for fewer what one recorded for those would do. Its
results keep their places; their ends stay as they were.
"""

from typing import NamedTuple

from nanoserve.errors import InvariantError
from nanoserve.kernels.native_program import NativeProgram
from nanoserve.kernels.op_args import ALL_OP_ARGS, request_offsets, row_offsets

_WORD_BYTES = 8


class StepRows(NamedTuple):
    """What the operators of a step go over.

    Attributes:
        num_tokens: Rows of all operators before those of the logits.
        num_requests: Attention goes over these, too.
        num_logits: Rows of the last operators.
    """

    num_tokens: int
    num_requests: int
    num_logits: int


class ProgramRows:
    """Sets the numbers of rows in the arguments of a program's operators."""

    def __init__(self, program: NativeProgram, num_token_ops: int, most: StepRows) -> None:
        """Find the arguments that count rows.

        Args:
            program: Recorded.
            num_token_ops: How many of its operators have a row for each token; those behind
                have one for each of the logits.
            most: What it was recorded for.

        Raises:
            InvariantError: An operator goes over something else.
        """
        self._words = program.words
        self._fields: tuple[list[tuple[int, int]], ...] = ([], [], [])  # by field of StepRows
        self._rows = most
        for op, (kind, start) in enumerate(zip(program.kinds, program.starts, strict=True)):
            args = ALL_OP_ARGS[kind]
            for offset in row_offsets(args):
                self._note(start + offset, 0 if op < num_token_ops else 2)
            for offset in request_offsets(args):
                self._note(start + offset, 1)

    def set(self, rows: StepRows) -> None:
        """Have the next runs go over `rows`, each at most as many as were recorded."""
        if rows == self._rows:
            return
        for fields, count in zip(self._fields, rows, strict=True):
            for place, per_row in fields:
                self._words[place] = per_row * count
        self._rows = rows

    def _note(self, position: int, field: int) -> None:
        place = position // _WORD_BYTES
        per_row, rest = divmod(self._words[place], self._rows[field])
        if rest:
            message = (
                f"An operator was recorded with {self._words[place]} where it should go over a "
                f"multiple of {self._rows[field]} ({StepRows._fields[field]})."
            )
            raise InvariantError(message)
        self._fields[field].append((place, per_row))
