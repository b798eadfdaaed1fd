"""Recorders: the stand-in runs the step itself; a failed CUDA capture says what failed it."""

import torch

from nanoserve.runner import graph_recorder
from nanoserve.runner.graph_recorder import ReplayRecorder


def test_the_stand_in_runs_once_and_replays_the_same() -> None:
    """Recording runs the step; each replay runs it again."""
    calls: list[str] = []

    replay = ReplayRecorder().record(lambda: calls.append("run"))

    assert calls == ["run"]
    replay()
    replay()
    assert calls == ["run"] * 3


def test_out_of_memory_is_found_behind_the_error_that_hid_it() -> None:
    """A capture that cannot be ended raises over the error that broke it."""
    caught: Exception | None = None
    try:
        try:
            message = "CUDA out of memory"
            raise torch.OutOfMemoryError(message)
        finally:
            message = "operation failed due to a previous error during capture"
            raise RuntimeError(message)
    except RuntimeError as error:
        caught = error

    found = graph_recorder._find_out_of_memory(caught)

    assert str(found) == "CUDA out of memory"
    assert graph_recorder._find_out_of_memory(RuntimeError()) is None
