"""Programs of native operators by more threads than they have cores, in a process of its own.

Run as `python -m tests.team_stress NUM_CORES NUM_PROGRAMS`: on that many of its cores, with a
neighbour that never rests on one of them, each program is run by 2 to 4 threads in turn and
compared with what one thread makes of it. Forks in between. Says how many differ, and a dot
for some that were run.
"""

import os
import subprocess
import sys

import torch
from torch import Tensor

from nanoserve.kernels.native_program import NativeProgram
from nanoserve.model.native_ops import NativeOps
from tests.native_kernels import native_kernels
from tests.packed_weights import FORMATS, random_packed

NEIGHBOUR = "import os; os.sched_setaffinity(0, {%d})\nwhile os.getppid() == %d: pass"
SIZE, INNER, NUM_ROWS, NUM_LAYERS = 512, 1536, 7, 4


def layers(ops: NativeOps, x: Tensor) -> Tensor:
    """Return x after products, norms and activations whose memory is used again and again."""
    norm = torch.rand(SIZE, dtype=x.dtype)
    formats = [name for name in FORMATS if name in (str(x.dtype).partition(".")[2], "int8", "int4")]
    for layer in range(NUM_LAYERS):
        kind = formats[layer % len(formats)]
        up = random_packed(kind, 2 * INNER, SIZE, 64)
        down = random_packed(kind, SIZE, INNER, 64)
        KEPT.extend((up.data, up.scales, up.minimums, down.data, down.scales, down.minimums, norm))
        delta = ops.linear(ops.silu_mul(ops.linear(x, up, None)), down, None)
        x = ops.rms_norm(ops.add(x, delta), norm, 1e-5)
    return x


KEPT: list[Tensor | None] = []  # what programs read must outlive them


def recorded(dtype: torch.dtype) -> tuple[NativeProgram, Tensor]:
    """Return a program, and what it writes last."""
    kernels = native_kernels()
    ops, out = NativeOps(kernels), torch.zeros(NUM_ROWS, SIZE, dtype=torch.float32)
    x = torch.randn(NUM_ROWS, SIZE).to(dtype)
    with kernels.record() as tape:
        ops.widen(layers(ops, x), out)
    recording = tape.finish()
    block = torch.zeros(recording.layout.num_bytes, dtype=torch.uint8)
    KEPT.extend((x, block))
    return recording.place(block.data_ptr()), out


def count_differences(programs: list[tuple[NativeProgram, Tensor]], num_runs: int) -> int:
    """Return how many of so many runs left other bits than one thread does."""
    kernels, expected = native_kernels(), []
    for program, out in programs:
        kernels.run_program(program, 1)
        expected.append(out.clone())
    num_different = 0
    for run in range(num_runs):
        program, out = programs[run % len(programs)]
        out.fill_(torch.nan)
        kernels.run_program(program, 2 + run % 3)
        num_different += not torch.equal(out, expected[run % len(programs)])
        if run % 500 == 0:
            fork()
        if run % 20 == 0:
            say(".")
    return num_different


def say(text: str) -> None:
    """Write at once: whoever waits for the end sees by it that there will be one."""
    sys.stdout.write(text)
    sys.stdout.flush()


def fork() -> None:
    """Begin a process that has none of the team's threads, and see it end."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def main(num_cores: str, num_runs: str) -> None:
    """Say `0 of 1000 differ`, after the dots."""
    cores = sorted(os.sched_getaffinity(0))[: int(num_cores)]
    os.sched_setaffinity(0, cores)  # of this thread, and of those it will start
    torch.manual_seed(0)
    programs = [recorded(torch.bfloat16), recorded(torch.float32)]
    with subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR % (cores[-1], os.getpid())]
    ) as neighbour:
        num_different = count_differences(programs, int(num_runs))
        neighbour.kill()
    say(f"{num_different} of {num_runs} differ\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
