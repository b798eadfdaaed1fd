"""Where a decode step's time goes: `python bench/decode_step.py [model] [dtype] [rows ...]`.

Boots the engine in this process, without HTTP, on a CPU with native operators, and decodes
that many requests at once at a context of about 256 tokens. Prints the median milliseconds of
a step and of what lies around its recorded program (scheduler, layout, copies, draw, text),
and those of the program by kind of operator.
"""

import statistics
import sys
import time
from collections import defaultdict

import torch

from nanoserve.engine.engine_core import EngineCore
from nanoserve.engine.interface import GenerationRequest
from nanoserve.kernels.op_args import ALL_OP_ARGS
from nanoserve.launch.boot import BootedEngine, boot
from nanoserve.options import EngineOptions
from nanoserve.runner.native_recorder import NativeReplay
from nanoserve.sched.sampling_params import SamplingParams

PROMPT_LEN = 224
WARM_STEPS, TIMED_STEPS = 10, 40
MAX_TOKENS = 4 * TIMED_STEPS


class StepTimer:
    """Times a program's operators, or the whole of it, each time that it is replayed."""

    def __init__(self) -> None:
        self.is_detailed = False
        self.program_s = 0.0
        self.kind_s: dict[str, float] = {}
        self._replay = NativeReplay.__call__

    def __call__(self, replay: NativeReplay) -> None:
        """Stand in for `NativeReplay.__call__`."""
        start_s = time.perf_counter()
        if self.is_detailed:
            self.kind_s = kind_seconds(replay)
        else:
            self._replay(replay)
        self.program_s = time.perf_counter() - start_s


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


def measure(booted: BootedEngine, num_rows: int, timer: StepTimer) -> str:
    """Return the figures of steps of that many requests, in lines."""
    core = booted.core
    start_requests(core, num_rows)
    timer.is_detailed = False
    steps, around = [], []
    for _ in range(TIMED_STEPS):
        start_s = time.perf_counter()
        core.step()
        steps.append(time.perf_counter() - start_s)
        around.append(steps[-1] - timer.program_s)
    timer.is_detailed = True
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(TIMED_STEPS):
        core.step()
        for kind, seconds in timer.kind_s.items():
            by_kind[kind].append(seconds)
    core.abort_all()
    medians = {kind: statistics.median(found) for kind, found in by_kind.items()}
    parts = sorted(medians.items(), key=lambda item: -item[1])
    return "\n".join(
        (
            f"{num_rows} rows: step {1e3 * statistics.median(steps):.2f} ms, "
            f"around its program {1e3 * statistics.median(around):.2f} ms; in it",
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
    )
    booted = boot(options)
    timer = StepTimer()
    NativeReplay.__call__ = lambda replay: timer(replay)  # type: ignore[method-assign]
    for num_rows in rows:
        print(measure(booted, num_rows, timer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
