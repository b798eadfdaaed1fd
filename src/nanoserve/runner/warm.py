"""`warm_engine`: runs every planned decode shape once, before any loop exists.

A warm step writes the very buffers a real step writes, so it must not run beside one: the
boot warms first and builds the loop afterwards.
"""

from collections.abc import Callable

from nanoserve.plan.boot_info import CaptureOutcome
from nanoserve.runner.decode_buffers import Shape
from nanoserve.runner.decode_graphs import DecodeGraphs


def warm_engine(
    graphs: DecodeGraphs,
    progress: Callable[[int, int], None],
    allocated_bytes: Callable[[], int] | None = None,
) -> CaptureOutcome:
    """Record (or, without a recorder, run) the plan's shapes, largest first.

    Rows are padding alone and write to the sink block. A shape that the device has no
    memory for is dropped, and the smaller ones go on.

    Args:
        graphs: Has served no step.
        progress: Told after each shape how many are done, and of how many.
        allocated_bytes: Reads what the device holds; None measures nothing.
    """
    before_bytes = None if allocated_bytes is None else allocated_bytes()
    shapes = graphs.plan.shapes
    recorded: list[Shape] = []
    dropped: list[Shape] = []
    for index, shape in enumerate(shapes):
        (recorded if graphs.warm(shape) else dropped).append(shape)
        progress(index + 1, len(shapes))
    measured_bytes = None
    if allocated_bytes is not None and before_bytes is not None:
        measured_bytes = allocated_bytes() - before_bytes
    return CaptureOutcome(tuple(recorded), tuple(dropped), True, measured_bytes)
