"""Failed allocations and refusals."""

import re
from dataclasses import replace

import pytest

from nanoserve.explain.log_errors import (
    BootMarks,
    ErrorPattern,
    StageMark,
    find_error,
    stage_at,
    total_of_failure,
)
from nanoserve.explain.logged_boot import LoggedError
from nanoserve.units import GIB, MIB

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB. GPU 0 has a total "
    "capacity of 22.36 GiB of which 121.00 MiB is free. Process 1 has 22.2 GiB memory in use. Of "
    "the allocated memory 20.39 GiB is allocated by PyTorch, and 1 GiB is reserved"
)
OLD = (
    "CUDA out of memory. Tried to allocate 112.00 MiB (GPU 0; 44.35 GiB total capacity; 37.38 GiB "
    "already allocated; 53.00 MiB free; 38 GiB reserved in total by PyTorch)"
)
CROWDED = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of "
    "which 1.00 GiB is free. Including non-PyTorch memory, this process has 8.00 GiB memory in use."
)
TOO_LONG = re.compile(r"too long \((?P<need_tokens>\d+)\)")
MARKS = BootMarks(
    refusals=(
        ErrorPattern("too long", "request larger than pool", TOO_LONG),
        ErrorPattern("rather long", "option", TOO_LONG, needs_figures=True),
    ),
    stages=(StageMark("loading", "weights"), StageMark("recording", "capture")),
    traced_stages=(
        StageMark("in load_model", "weights"),
        StageMark("in capture_model", "capture"),
    ),
)


def find(text: str) -> LoggedError | None:
    return find_error(text, MARKS)


@pytest.mark.parametrize(
    ("text", "need", "have", "total"),
    [(NEW, 136, 121, 22.36), (OLD, 112, 53, 44.35)],
)
def test_pytorchs_two_wordings(text: str, need: int, have: int, total: float) -> None:
    """Asked, free and total are read from either generation of the message."""
    error = find(text)

    assert error is not None
    assert (error.need_bytes, error.have_bytes) == (need * MIB, have * MIB)
    assert total_of_failure(text) == (round(total * GIB), error.position)


def test_what_others_hold_is_the_rest() -> None:
    """Neither free nor this process's: 24 - 1 - 8 GiB; unknown where a part is."""
    crowded, alone = find(CROWDED), find(OLD)

    assert crowded is not None
    assert crowded.others_bytes == 15 * GIB
    assert alone is not None
    assert alone.others_bytes is None


def test_some_refusals_need_their_figures() -> None:
    """Where a healthy log uses the same words, the words alone are no refusal."""
    assert find("loading rather long (soon)") is None


def test_the_stage_is_the_last_mark_before() -> None:
    """What a boot said last is what it was doing."""
    error = find(f"loading recording {NEW} loading")

    assert error is not None
    assert error.stage == "capture"


def test_a_traceback_wins_over_marks() -> None:
    """Processes print in any order; the function that failed does not lie."""
    text = f"recording Traceback (most recent call last): line 1, in load_model {NEW}"

    assert stage_at(text, text.find("torch."), MARKS) == "weights"


def test_a_traceback_of_other_functions_leaves_it_to_the_marks() -> None:
    """Names that are not known say nothing."""
    text = f"recording Traceback (most recent call last): line 1, in main {NEW}"

    assert stage_at(text, text.find("torch."), MARKS) == "capture"


def test_without_marks_nobody_knows_the_stage() -> None:
    """A paste of the error alone leaves open what was being done."""
    assert stage_at(NEW, 10, MARKS) is None


def test_a_traceback_whose_start_is_cut_off_tells_the_stage() -> None:
    """Its functions count without its first line."""
    text = f'), in x File "/opt/engine/worker.py", line 9, in capture_model {NEW}'

    assert stage_at(text, len(text) - len(NEW), MARKS) == "capture"


def test_a_step_that_the_profile_runs_is_the_profile() -> None:
    """What serves requests is also run while booting: its caller counts."""
    marks = replace(
        MARKS,
        traced_stages=(
            StageMark("in profile_run", "profile"),
            StageMark("in execute_model", "serving"),
        ),
    )
    profiled = f"Traceback in profile_run in execute_model {NEW}"
    served = f"Traceback in execute_model {NEW}"

    assert stage_at(profiled, len(profiled) - len(NEW), marks) == "profile"
    assert stage_at(served, len(served) - len(NEW), marks) == "serving"


def test_memory_of_the_machine_is_no_failed_allocation_of_a_card() -> None:
    """Ray ends a process by an exception of the same name."""
    assert find("ray.exceptions.OutOfMemoryError: Task was killed: node running low") is None


def test_advice_about_memory_is_no_error() -> None:
    """Engines print what to do if memory should run out; that is no failure."""
    assert (
        find("If you are running out of memory, consider decreasing `gpu_memory_utilization`")
        is None
    )
    assert find("If out-of-memory error occurs during cudagraph capture, consider") is None
    assert total_of_failure("nothing of the kind") == (None, None)


def test_the_first_error_is_the_cause() -> None:
    """What follows are others noticing."""
    first = find(f"loading too long (4096) {NEW}")
    second = find(f"loading {NEW} too long (4096)")

    assert first is not None
    assert second is not None
    assert (first.kind, first.need_tokens, first.stage) == (
        "request larger than pool",
        4096,
        "weights",
    )
    assert second.kind == "out of memory"


def test_a_refusal_cut_short_has_no_numbers() -> None:
    """The kind is known though the figures are gone."""
    error = find("too long (")

    assert error is not None
    assert error.need_tokens is None


def test_one_process_among_those_of_a_container() -> None:
    """Listed without a word on which is its own: the smallest that holds what PyTorch allocated."""
    error = find(
        "CUDA out of memory. Tried to allocate 40.00 MiB. GPU 0 has a total capacity of 22.00 GiB of "
        "which 1.00 GiB is free. Process 451 has 1.16 GiB memory in use. Process 450 has 8.00 GiB "
        "memory in use. Process 449 has 11.00 GiB memory in use. Of the allocated memory 6.80 GiB is "
        "allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated."
    )

    assert error is not None
    assert error.others_bytes == (22 - 1 - 8) * GIB


def test_what_serves_runs_before_a_pool_only_in_the_profile() -> None:
    """Where weights are the last that was printed, no request can have been served."""
    marks = BootMarks(
        refusals=(),
        stages=(StageMark("loaded.", "profile"), StageMark("pool sized", "pool")),
        traced_stages=(StageMark("in execute_model", "serving"),),
    )
    traced = "Traceback\n in execute_model\nCUDA out of memory."
    stages = {
        lines: stage_at(lines + traced, len(lines + traced), marks)
        for lines in ("", "loaded.\n", "loaded.\npool sized\n")
    }

    assert list(stages.values()) == ["serving", "profile", "serving"]


def test_a_failure_told_twice_has_the_stage_of_either_telling() -> None:
    """A paste may start after the first telling's traceback."""
    told = (
        "CUDA out of memory. Tried to allocate 80.00 MiB. GPU 0 has a total capacity of 140.00 GiB"
    )
    again = find(f"{told}\nProcess EngineCore:\nTraceback\n in load_model\n{told}")
    other = find(f"{told}\nTraceback\n in load_model\n{told.replace('80.00', '96.00')}")

    assert again is not None
    assert again.stage == "weights"
    assert other is not None
    assert other.stage is None


def test_what_was_raised_is_quoted_rather_than_its_source() -> None:
    """A traceback shows the `raise`; alone, that line has to do."""
    source = '    raise ValueError("too long")\n'
    raised = find(f"{source}ValueError: too long\n")
    alone = find(source)

    assert raised is not None
    assert raised.position == len(source) + len("ValueError: ")
    assert alone is not None


@pytest.mark.parametrize(
    "raised",
    ["The above exception was the direct cause of the following exception:", "Process EngineCore:"],
)
def test_the_next_raise_of_a_failure_tells_its_stage(raised: str) -> None:
    """Its outer traceback names the functions that the first one's lost beginning did."""
    told = "CUDA out of memory. Tried to allocate 1.88 GiB.\n"
    error = find(f"{told}{raised}\nTraceback (most recent call last):\n in load_model\n")
    unrelated = find(f"{told}Traceback (most recent call last):\n in load_model\n")

    assert error is not None
    assert error.stage == "weights"
    assert unrelated is not None
    assert unrelated.stage is None
