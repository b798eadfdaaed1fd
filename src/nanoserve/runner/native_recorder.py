"""`NativeRecorder`: decode steps on the CPU as flat programs of native operators.

Owns the block that the results of every recorded step lie in, one step at a time. How a
program is taken down and laid out is `kernels.native_program`'s.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nanoserve.errors import InvariantError
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.native_program import NativeProgram
from nanoserve.runner.graph_recorder import Replay


class NativeRecorder:
    """Records steps that are made of native operators alone.

    A step is called once and nothing of it is computed: its operators are written down. A
    replay is one call that runs them all. Recording takes milliseconds, so that a late
    record is no event.
    """

    def __init__(self, kernels: KernelLibrary) -> None:
        self._kernels = kernels
        self._block = torch.empty(0, dtype=torch.uint8)
        self._is_checked = False

    def record(self, run: Callable[[], None]) -> Replay:
        """Take down the operators of `run`, and give their results places in the block.

        Raises:
            MemoryError: There is none for a larger block; nothing is kept.
            InvariantError: The step calls operators of torch, which no replay would repeat.
                The first record looks for them, at several times the price.
        """
        return NativeReplay(self._kernels, *self.program(run))

    def program(self, run: Callable[[], None]) -> tuple[NativeProgram, torch.Tensor]:
        """Return the program of `run`, and the block its results lie in."""
        with self._kernels.record() as tape:
            if self._is_checked:
                run()
            else:
                with _NoTorchOperators():
                    run()
                self._is_checked = True
        recording = tape.finish()
        num_bytes = recording.layout.num_bytes
        if num_bytes > len(self._block):
            # Programs in a smaller block keep it. Filled, so that its pages are there now.
            self._block = torch.empty(num_bytes, dtype=torch.uint8).fill_(0)
        return recording.place(self._block.data_ptr()), self._block


class NativeReplay:
    """One recorded step, to be called."""

    def __init__(self, kernels: KernelLibrary, program: NativeProgram, block: torch.Tensor) -> None:
        self.program = program
        self._kernels = kernels
        self._block = block  # kept: the program writes there

    def __call__(self) -> None:
        """Run the step on what its inputs hold now."""
        self._kernels.run_program(self.program, torch.get_num_threads())


class _NoTorchOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets nothing pass but views and tensors without content."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        returns = func._schema.returns
        is_view = bool(returns) and all(
            value.alias_info is not None and not value.alias_info.is_write for value in returns
        )
        if not is_view and not func.name().startswith("aten::empty"):
            message = f"A recorded step calls {func}, which is no native operator."
            raise InvariantError(message)
        return func(*args, **(kwargs or {}))
