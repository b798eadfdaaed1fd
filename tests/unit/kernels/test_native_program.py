"""A recorded program does what its operators did, on results of its own."""

import os

import torch
from torch import Tensor

from nanoserve.attention.native_result import new_result
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.native_program import NativeProgram
from nanoserve.kernels.op_args import AddArgs
from tests.native_kernels import native_kernels, needs_kernels

pytestmark = needs_kernels

SIZE = 100


def add(kernels: KernelLibrary, x: Tensor, delta: Tensor, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = new_result(kernels, SIZE, dtype=torch.float32)
    args = AddArgs(x.data_ptr(), delta.data_ptr(), out.data_ptr(), SIZE, 0)
    kernels.run(args, 1)
    return out


def doubled(kernels: KernelLibrary, x: Tensor, times: int, out: Tensor) -> None:
    """Write `x * 2 ** times` to `out`, through `times - 1` results."""
    for _ in range(times - 1):
        x = add(kernels, x, x)
    add(kernels, x, x, out)


def placed(kernels: KernelLibrary, x: Tensor, out: Tensor) -> tuple[NativeProgram, Tensor]:
    with kernels.record() as tape:
        doubled(kernels, x, 5, out)
    recording = tape.finish()
    block = torch.empty(recording.layout.num_bytes, dtype=torch.uint8)
    return recording.place(block.data_ptr()), block


def test_a_program_reads_its_inputs_when_it_runs() -> None:
    """Recording computes nothing; each run works on what the inputs hold then."""
    kernels, x, out = native_kernels(), torch.ones(SIZE), torch.zeros(SIZE)
    program, _block = placed(kernels, x, out)
    assert not out.any()

    for value in (1.0, 3.0):
        x.fill_(value)
        kernels.run_program(program, 2)
        assert out.tolist() == [32 * value] * SIZE


def test_results_lie_in_the_block_two_at_a_time() -> None:
    """A chain of any length needs room for a result and for the one made from it."""
    kernels, x, out = native_kernels(), torch.ones(SIZE), torch.zeros(SIZE)
    _program, block = placed(kernels, x, out)

    assert block.nbytes == 448 + 4 * SIZE


def test_what_is_allocated_after_the_record_changes_nothing() -> None:
    """The addresses a tape saw are handed out again; no program still points there."""
    kernels, x, out = native_kernels(), torch.ones(SIZE), torch.zeros(SIZE)
    program, _block = placed(kernels, x, out)
    others = [torch.full((SIZE,), float("nan")) for _ in range(2000)]

    kernels.run_program(program, 2)

    assert out.tolist() == [32.0] * SIZE
    assert all(other.isnan().all() for other in others)


def test_a_pointer_into_a_result_moves_with_it() -> None:
    """A view begins where it began, counted from the start of what it is a view of."""
    kernels, out = native_kernels(), torch.zeros(SIZE)
    x = torch.arange(2.0 * SIZE)
    with kernels.record() as tape:
        both = new_result(kernels, 2 * SIZE, dtype=torch.float32)
        kernels.run(AddArgs(x.data_ptr(), x.data_ptr(), both.data_ptr(), 2 * SIZE, 0), 1)
        add(kernels, both[SIZE:], both[SIZE:], out)
    recording = tape.finish()
    block = torch.empty(recording.layout.num_bytes, dtype=torch.uint8)

    kernels.run_program(recording.place(block.data_ptr()), 1)

    assert torch.equal(out, 4 * x[SIZE:])


def test_operators_run_at_once_when_nothing_records() -> None:
    """Also after a recording that failed."""
    kernels, x = native_kernels(), torch.ones(SIZE)
    try:
        with kernels.record():
            raise KeyError
    except KeyError:
        pass

    assert add(kernels, x, x).tolist() == [2.0] * SIZE


def test_more_threads_than_cores_wait_for_each_other() -> None:
    """Every operator is done by all before the next begins, asleep or not while they wait."""
    kernels, x, out = native_kernels(), torch.ones(SIZE), torch.zeros(SIZE)
    program, _block = placed(kernels, x, out)

    for value in range(1, 20):
        x.fill_(float(value))
        kernels.run_program(program, 4 * (os.cpu_count() or 1))
        assert out.tolist() == [32.0 * value] * SIZE


def test_a_timed_run_is_a_run() -> None:
    """It says nanoseconds for each operator, and leaves the same results."""
    kernels, x, out = native_kernels(), torch.ones(SIZE), torch.zeros(SIZE)
    program, _block = placed(kernels, x, out)

    nanoseconds = kernels.time_program(program, 2)

    assert len(nanoseconds) == len(program.kinds) == 5
    assert all(each > 0 for each in nanoseconds)
    assert out.tolist() == [32.0] * SIZE
