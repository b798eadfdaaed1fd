"""Where a decode step's time goes: `python bench/decode_step.py [model] [dtype] [rows ...]`.

Boots the engine in this process, without HTTP, on a CPU with native operators, and decodes
that many requests at once at a context of about 256 tokens. Prints the median milliseconds of
a step, of what lies around its recorded program (scheduler, layout, copies, draw, text), of
the scheduler and the layout alone, and those of the program by kind of operator. Steps
alternate with plain reads of memory that no cache holds: the floor is what reading the
weights once takes at the rate of these.
"""

import statistics
import sys
import time
from collections import defaultdict
from typing import Any

import torch

from nanoserve.engine.engine_core import EngineCore
from nanoserve.engine.interface import GenerationRequest
from nanoserve.kernels.kernel_library import load_kernels
from nanoserve.kernels.op_args import ALL_OP_ARGS, RowMaxArgs
from nanoserve.launch.boot import BootedEngine, boot
from nanoserve.options import MAX_TARGET_ITL_MS, EngineOptions
from nanoserve.runner.native_recorder import NativeReplay
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.scheduler import Scheduler

PROMPT_LEN = 224
WARM_STEPS, TIMED_STEPS = 10, 40
MAX_TOKENS = 4 * TIMED_STEPS
READ_ROWS, READ_COLUMNS = 2048, 65536  # of float32: half a GiB
STEPS_A_READ = 4


class StepTimer:
    """Stands in for functions that a step calls, and notes what each took in the last step."""

    def __init__(self) -> None:
        self.is_detailed = False
        self.kind_s: dict[str, float] = {}
        self._spent_s: defaultdict[str, float] = defaultdict(float)

    def watch(self, owner: type, name: str, part: str) -> None:
        """Add the seconds of `owner.name` to those of `part`."""
        function = getattr(owner, name)

        def timed(*args: Any) -> Any:
            start_s = time.perf_counter()
            if self.is_detailed and owner is NativeReplay:
                result = self.kind_s = kind_seconds(args[0])
            else:
                result = function(*args)
            self._spent_s[part] += time.perf_counter() - start_s
            return result

        setattr(owner, name, timed)

    def take(self, part: str) -> float:
        """Return the seconds of `part` since they were taken last."""
        return self._spent_s.pop(part, 0.0)


def kind_seconds(replay: NativeReplay) -> dict[str, float]:
    """Run the step and return the seconds of each kind of operator."""
    found: defaultdict[str, float] = defaultdict(float)
    program = replay.program
    nanoseconds = replay.kernels.time_program(program, torch.get_num_threads())
    for kind, each in zip(program.kinds, nanoseconds, strict=True):
        found[ALL_OP_ARGS[kind].__name__.removesuffix("Args")] += each / 1e9
    return found


def start_requests(core: EngineCore, num_rows: int) -> None:
    """Add requests and run steps until all of them decode."""
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    for row in range(num_rows):
        prompt = tuple(100 + (row * 37 + i * 11) % 2000 for i in range(PROMPT_LEN))
        core.add(GenerationRequest(f"{num_rows}-{row}", prompt, sampling))
    num_tokens: defaultdict[str, int] = defaultdict(int)
    while len(num_tokens) < num_rows:
        for delta in core.step():
            num_tokens[delta.request_id] += 1
    for _ in range(WARM_STEPS):
        core.step()


class MemoryReader:
    """Reads memory on all threads with a native operator that computes next to nothing."""

    def __init__(self) -> None:
        self._kernels = load_kernels()
        self._tensors = (
            torch.ones(READ_ROWS, READ_COLUMNS),
            torch.empty(READ_ROWS),
            torch.empty(READ_ROWS, dtype=torch.int64),
        )

    def bytes_per_s(self) -> float:
        """Read once."""
        pointers = (tensor.data_ptr() for tensor in self._tensors)
        args = RowMaxArgs(*pointers, READ_ROWS, READ_COLUMNS)
        start_s = time.perf_counter()
        self._kernels.run(args, torch.get_num_threads())
        return self._tensors[0].nbytes / (time.perf_counter() - start_s)


def measure(booted: BootedEngine, num_rows: int, timer: StepTimer, reader: MemoryReader) -> str:
    """Return the figures of steps of that many requests, in lines."""
    core = booted.core
    start_requests(core, num_rows)
    timer.is_detailed = False
    steps, around, planning, reads = [], [], [], []
    for number in range(TIMED_STEPS):
        if number % STEPS_A_READ == 0:
            reads.append(reader.bytes_per_s())
        timer.take("program"), timer.take("planning")
        start_s = time.perf_counter()
        core.step()
        steps.append(time.perf_counter() - start_s)
        around.append(steps[-1] - timer.take("program"))
        planning.append(timer.take("planning"))
    timer.is_detailed = True
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(TIMED_STEPS):
        core.step()
        for kind, seconds in timer.kind_s.items():
            by_kind[kind].append(seconds)
    core.abort_all()
    medians = {kind: statistics.median(found) for kind, found in by_kind.items()}
    parts = sorted(medians.items(), key=lambda item: -item[1])
    floor_s = booted.plan.weight_bytes / statistics.median(reads)
    return "\n".join(
        (
            f"{num_rows} rows: floor {1e3 * floor_s:.2f} ms at "
            f"{statistics.median(reads) / 1e9:.1f} GB/s "
            f"({min(reads) / 1e9:.1f} to {max(reads) / 1e9:.1f}), "
            f"{floor_s / statistics.median(steps):.0%} of the step",
            f"{num_rows} rows: step {1e3 * statistics.median(steps):.2f} ms, "
            f"around its program {1e3 * statistics.median(around):.2f} ms, of it scheduler and "
            f"layout {1e3 * statistics.median(planning):.2f} ms; in it",
            *(f"  {kind:16}{1e3 * seconds:8.3f} ms" for kind, seconds in parts),
        )
    )


def main(model: str = "smollm2", dtype: str = "auto", *counts: str) -> None:
    """Print the figures."""
    rows = [int(count) for count in counts or ("1", "8", "32")]
    options = EngineOptions(
        model=model,
        device="cpu",
        dtype=dtype,  # type: ignore[arg-type]
        max_num_seqs=max(rows),
        max_model_len=PROMPT_LEN + MAX_TOKENS,
        enable_prefix_caching=False,
        target_itl_ms=MAX_TARGET_ITL_MS,  # all prompts are read before the first step is timed
    )
    booted = boot(options)
    timer, reader = StepTimer(), MemoryReader()
    timer.watch(NativeReplay, "__call__", "program")
    timer.watch(Scheduler, "schedule", "planning")
    timer.watch(Scheduler, "apply", "planning")
    timer.watch(BatchLayout, "from_step", "planning")
    for num_rows in rows:
        print(measure(booted, num_rows, timer, reader), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
