"""How a step is recorded so that it can be run again without Python: one protocol.

A recorder is handed a callable that reads and writes tensors which stay where they are,
and returns another that does the same work on the same tensors.
"""

from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]


class GraphRecorder(Protocol):
    """Records steps. What they need beside their inputs and outputs is one shared arena."""

    def record(self, run: Callable[[], None]) -> Replay:
        """Call `run` at least once and return its replay.

        Whether the step's work is done meanwhile is open: who needs it replays.

        Args:
            run: Does the same work however often it is called; no host sync, no tensor
                whose shape depends on a value.

        Raises:
            torch.OutOfMemoryError: The device has no memory for it; nothing is kept.
        """
        ...


class CudaGraphRecorder:
    """Records CUDA graphs that share one memory pool.

    The pool is as big as the hungriest graph: graphs are replayed one after the other, and
    what a step hands on it writes to tensors outside the pool. Largest first, later graphs
    fit into what earlier ones left.

    Source: "CUDA Graphs" in the torch documentation, torch 2.13: warm up on the stream
    that captures, name the same stream for every capture into one pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._arena = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def record(self, run: Callable[[], None]) -> Replay:
        """Run once for lazy initialisation and compilation, then capture without running.

        Raises:
            torch.OutOfMemoryError: The device has no memory for it; nothing is kept.
        """
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            # The outer context restores the stream even where the capture cannot be ended.
            with torch.cuda.stream(self._stream):
                run()
                # thread_local: other threads of the process may go on allocating.
                with torch.cuda.graph(graph, self._arena, self._stream, "thread_local"):
                    run()
        except RuntimeError as error:
            cause = _find_out_of_memory(error)
            if cause is None or cause is error:
                raise
            # A failed capture fails again when it is ended, and that error hides the first.
            raise torch.OutOfMemoryError(str(cause)) from error
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph.replay


class ReplayRecorder:
    """The stand-in where there are no graphs: its replay is the callable itself.

    Nothing is faster for it; what it shares with CUDA graphs is the ladder around them, so
    that shapes, padding, late records and evictions can be watched on a CPU.
    """

    def record(self, run: Callable[[], None]) -> Replay:
        """Run once, as a recorder does, and return `run`."""
        run()
        return run


def _find_out_of_memory(error: BaseException | None) -> torch.OutOfMemoryError | None:
    """Look through an error and those it was raised during."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__context__
    return error
