"""A program recorded for many rows runs with fewer, and touches no other."""

import pytest
import torch
from torch import Tensor

from nanoserve.attention.native_result import new_result
from nanoserve.errors import InvariantError
from nanoserve.kernels.native_program import NativeProgram
from nanoserve.kernels.op_args import AddArgs, PagedAttentionArgs, RmsNormArgs
from nanoserve.kernels.program_rows import ProgramRows, StepRows
from tests.native_kernels import native_kernels, needs_kernels

pytestmark = needs_kernels

SIZE = 32
MOST = StepRows(6, 4, 3)


def recorded(x: Tensor, out: Tensor, num_logits: int) -> tuple[NativeProgram, Tensor]:
    """Record `x + x` for all rows, and for the first `num_logits` twice that in `out`."""
    kernels = native_kernels()
    with kernels.record() as tape:
        doubled = new_result(kernels, *x.shape, dtype=x.dtype)
        kernels.run(AddArgs(x.data_ptr(), x.data_ptr(), doubled.data_ptr(), x.numel(), 0), 1)
        address = doubled.data_ptr()
        kernels.run(AddArgs(address, address, out.data_ptr(), num_logits * SIZE, 0), 1)
    recording = tape.finish()
    block = torch.zeros(recording.layout.num_bytes, dtype=torch.uint8)
    return recording.place(block.data_ptr()), block


@pytest.mark.parametrize("num_logits", [0, 1, 3])
def test_no_rows_but_those_asked_for_are_computed(num_logits: int) -> None:
    """Fewer, all again, and none, in any order."""
    x = torch.arange(6.0 * SIZE).view(6, SIZE)
    out = torch.full((3, SIZE), -1.0)
    program, block = recorded(x, out, 3)
    rows = ProgramRows(program, 1, MOST)
    doubled = block.view(torch.float32)[: 6 * SIZE].view(6, SIZE)

    rows.set(StepRows(4, 1, num_logits))
    native_kernels().run_program(program, 2)
    assert torch.equal(doubled[:4], 2 * x[:4])
    assert not doubled[4:].any()
    assert torch.equal(out[:num_logits], 4 * x[:num_logits])
    assert bool((out[num_logits:] == -1).all())

    rows.set(MOST)
    native_kernels().run_program(program, 2)
    assert torch.equal(doubled, 2 * x)
    assert torch.equal(out, 4 * x[:3])


def test_each_kind_of_rows_goes_where_it_counts() -> None:
    """Tokens before the logits' operators and logits there; requests in attention alone."""
    kernels = native_kernels()
    with kernels.record() as tape:
        kernels.run(PagedAttentionArgs(num_tokens=6, num_requests=4, max_partitions=12), 1)
        kernels.run(RmsNormArgs(rows=6, size=12), 1)
        kernels.run(RmsNormArgs(rows=3, size=12), 1)
    program = tape.finish().place(0)

    ProgramRows(program, 2, MOST).set(StepRows(5, 2, 1))

    attention, norm, last = (
        args.from_buffer(program.words, start)
        for args, start in zip(
            (PagedAttentionArgs, RmsNormArgs, RmsNormArgs), program.starts, strict=True
        )
    )
    assert (attention.num_tokens, attention.num_requests) == (5, 2)
    assert (norm.rows, last.rows) == (5, 1)
    assert attention.max_partitions == norm.size == last.size == 12


def test_an_operator_over_something_else_is_refused() -> None:
    """Else it would go over a part of what it should, and nobody would know."""
    x, out = torch.zeros(6, SIZE), torch.zeros(3, SIZE)
    program, _block = recorded(x, out, 2)

    with pytest.raises(InvariantError, match=r"recorded with 64 .* multiple of 3 \(num_logits\)"):
        ProgramRows(program, 1, MOST)
