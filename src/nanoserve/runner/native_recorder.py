"""`NativeRecorder`: decode steps on the CPU as flat programs of native operators.

Owns the block that the results of every recorded step lie in, one step at a time. How a
program is taken down and laid out is `kernels.native_program`'s.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.native_program import NativeProgram
from nanoserve.kernels.program_rows import ProgramRows, StepRows
from nanoserve.runner.out_of_memory import as_memory_error

X = TypeVar("X")


class NativeRecorder:
    """Records steps that are made of native operators alone.

    A step is called once and nothing of it is computed: its operators are written down. A
    replay is one call that runs them all. Recording takes milliseconds, so that a late
    record is no event.
    """

    def __init__(self, kernels: KernelLibrary, block_bytes: int = 0) -> None:
        """Note what is planned; the first recording allocates it.

        Args:
            kernels: What runs the programs.
            block_bytes: What their results are planned to take; a larger program gets a
                larger block, and those before it keep theirs.
        """
        self._kernels = kernels
        self._planned_bytes = block_bytes
        self._block = torch.empty(0, dtype=torch.uint8)

    def record(self, run: Callable[[], None]) -> "NativeReplay":
        """Take down the operators of `run`, and give their results places in the block.

        Args:
            run: Calls no operator of torch's but views: no replay would repeat it. Tests
                look for those; torch's own watch costs a boot a second.

        Raises:
            MemoryError: There is none for a larger block; nothing is kept.
        """
        with as_memory_error():
            with self._kernels.record() as tape:
                run()
            recording = tape.finish()
            if recording.layout.num_bytes > len(self._block):
                num_bytes = max(self._planned_bytes, recording.layout.num_bytes)
                block = torch.empty(num_bytes, dtype=torch.uint8)
                self._block = block.fill_(0)  # its pages are to be there now
        program = recording.place(self._block.data_ptr())
        return NativeReplay(self._kernels, program, self._block)

    def record_rows(
        self, begin: Callable[[], X], end: Callable[[X], None], most: StepRows
    ) -> "RowsReplay":
        """Take down a step that can be run with fewer rows than now.

        Args:
            begin: Calls operators with a row for each token; as `run` of `record`.
            end: Calls those with a row for each of the logits, on what `begin` returned.
            most: The numbers of rows they are called with.

        Raises:
            MemoryError: See `record`.
        """
        num_token_ops = 0

        def run() -> None:
            nonlocal num_token_ops
            begun = begin()
            num_token_ops = self._kernels.num_recorded
            end(begun)

        replay = self.record(run)
        return RowsReplay(replay, ProgramRows(replay.program, num_token_ops, most))


class NativeReplay:
    """One recorded step, to be called.

    Attributes:
        program: Its operators.
        kernels: What runs them.
    """

    def __init__(self, kernels: KernelLibrary, program: NativeProgram, block: torch.Tensor) -> None:
        self.program = program
        self.kernels = kernels
        self._block = block  # kept: the program writes there

    def __call__(self) -> None:
        """Run the step on what its inputs hold now."""
        self.kernels.run_program(self.program, torch.get_num_threads())


class RowsReplay:
    """One recorded step, to be called with how many rows it has this time."""

    def __init__(self, replay: NativeReplay, rows: ProgramRows) -> None:
        self._replay = replay
        self._rows = rows

    def __call__(self, rows: StepRows) -> None:
        """Run the step on what the first rows of its inputs hold now."""
        self._rows.set(rows)
        self._replay()
