"""How the cost of a step grows with its tokens, and what the host adds: `python -m bench.growth`.

A model with random weights in the shape of Llama 3.2 1B, its pool filled at random, so that
no page of it is shared or zero. Decodes of several contexts and prompts of several lengths
are timed, and a straight line is laid through each group: time = fixed + slope x tokens.
Then the scheduler and the layout of a step are timed alone, with 256 requests running, and
set against the step of that model and of SmolLM2.

    python -m bench.growth [repeats]

Takes 3 GB of disk for the model, 8 GiB of memory and a few minutes.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tests.model_folders import LLAMA_1B, write_llama

from nanoserve.launch.boot import BootedEngine, boot
from nanoserve.options import MAX_TARGET_ITL_MS, EngineOptions
from nanoserve.plan.text_table import table_lines
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.scheduler import Scheduler
from nanoserve.sched.step import ScheduledRequest, StepPlan, StepResult

BLOCK_SIZE = 16
POOL_TOKENS = 128 * 1024
MAX_MODEL_LEN = 8192
NUM_RUNNING, RUNNING_CONTEXT = 256, 448
DECODES = {  # rows: contexts
    8: (1024, 2048, 4096, 8192),
    32: (512, 1024, 2048, 4096),
    128: (256, 512, 768, 1024),
}
PROMPTS = (64, 128, 256, 512)
_GREEDY = SamplingParams(temperature=0.0, max_tokens=1024, ignore_eos=True)


def boot_filled(model: str, max_model_len: int) -> BootedEngine:
    """Boot a model and fill its pool at random."""
    booted = boot(
        EngineOptions(
            model=model,
            device="cpu",
            max_num_seqs=NUM_RUNNING,
            max_model_len=max_model_len,
            num_blocks=POOL_TOKENS // BLOCK_SIZE,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=max(PROMPTS),
            target_itl_ms=MAX_TARGET_ITL_MS,  # prompts are whole, whatever runs beside them
        )
    )
    generator = torch.Generator().manual_seed(0)
    for tensors in booted.pool.layers:
        for tensor in tensors:
            tensor.copy_(torch.randn(tensor.shape[1:], generator=generator))
    return booted


def step_of(num_rows: int, num_computed: int, num_new: int) -> StepPlan:
    """Return a step in which each request has `num_computed` tokens in the pool.

    Blocks are dealt out from a shuffled pool: a context lies in no order in memory.
    """
    per_request = -(-(num_computed + num_new) // BLOCK_SIZE)
    order = torch.randperm(POOL_TOKENS // BLOCK_SIZE, generator=torch.Generator().manual_seed(1))
    blocks = order.tolist()
    scheduled = tuple(
        ScheduledRequest(
            request_id=str(row),
            token_ids=tuple(range(100, 100 + num_new)),
            num_computed_tokens=num_computed,
            block_table=tuple(blocks[row * per_request : (row + 1) * per_request]),
            sampling=_GREEDY,
            seed=row,
            samples=True,
        )
        for row in range(num_rows)
    )
    return StepPlan(0, scheduled)


def step_ms(runner: ModelRunner, step: StepPlan, repeats: int) -> float:
    """Return the best time of a step, after one that is not counted: what else runs only adds."""
    runner.execute(step)
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        runner.execute(step)
        times.append(time.perf_counter() - start_s)
    return 1e3 * min(times)


def group_lines(name: str, tokens: Sequence[int], times_ms: Sequence[float]) -> list[str]:
    """Return a group's table: measured, on the line, and how far apart they are."""
    slope, fixed = statistics.linear_regression(tokens, times_ms)
    rows = [(name, "tokens", "measured", "on the line", "apart")]
    for count, time_ms in zip(tokens, times_ms, strict=True):
        line_ms = fixed + slope * count
        apart = f"{100 * (time_ms / line_ms - 1):+.1f} %"
        rows.append(("", f"{count:,}", f"{time_ms:,.1f} ms", f"{line_ms:,.1f} ms", apart))
    rows.append(("", "", f"{1e3 * slope:.2f} ms per 1,000", f"{fixed:,.1f} ms fixed", ""))
    return list(table_lines(rows))


def host_ms(repeats: int) -> dict[str, float]:
    """Return the median times of planning, laying out and booking a step of 256 decodes."""
    scheduler = Scheduler(
        EngineLimits(
            num_blocks=POOL_TOKENS // BLOCK_SIZE,
            block_size=BLOCK_SIZE,
            max_num_seqs=NUM_RUNNING,
            max_num_batched_tokens=NUM_RUNNING * RUNNING_CONTEXT,
            max_model_len=MAX_MODEL_LEN,
            vocab_size=LLAMA_1B.vocab_size,
        )
    )
    for row in range(NUM_RUNNING):
        prompt = tuple(range(row, row + RUNNING_CONTEXT))
        scheduler.add(str(row), prompt, _GREEDY)
    times: dict[str, list[float]] = {"schedule": [], "layout": [], "apply": []}
    for _ in range(repeats + 1):
        start_s = time.perf_counter()
        plan = scheduler.schedule()
        scheduled_s = time.perf_counter()
        BatchLayout.from_step(plan, BLOCK_SIZE)
        laid_out_s = time.perf_counter()
        scheduler.apply(StepResult(plan.step_id, tuple(7 for _ in plan.scheduled), {}))
        applied_s = time.perf_counter()
        if plan.is_decode:
            times["schedule"].append(scheduled_s - start_s)
            times["layout"].append(laid_out_s - scheduled_s)
            times["apply"].append(applied_s - laid_out_s)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def runner_of(booted: BootedEngine) -> ModelRunner:
    """Return the runner itself: a step is timed without the engine around it."""
    runner = booted.core._runner
    if not isinstance(runner, ModelRunner):
        message = f"The engine runs on {type(runner).__name__}, which this bench cannot time."
        raise TypeError(message)
    return runner


def print_growth(runner: ModelRunner, repeats: int) -> None:
    """Print a table for each number of rows, and one for prompts."""
    for num_rows, contexts in DECODES.items():
        times = [step_ms(runner, step_of(num_rows, n - 1, 1), repeats) for n in contexts]
        tokens = [num_rows * context for context in contexts]
        print(*group_lines(f"{num_rows} decodes", tokens, times), "", sep="\n", flush=True)
    times = [step_ms(runner, step_of(1, 0, length), repeats) for length in PROMPTS]
    print(*group_lines("one prompt", PROMPTS, times), "", sep="\n", flush=True)


def print_host(model: str, full_ms: float, host: dict[str, float]) -> None:
    """Print what part of a full step the host's work is; the layout is in the step already."""
    total_ms = sum(host.values())
    parts = ", ".join(f"{name} {part_ms:.2f} ms" for name, part_ms in host.items())
    share = total_ms / (full_ms + host["schedule"] + host["apply"])
    print(
        f"{model}: {NUM_RUNNING} decodes at context {RUNNING_CONTEXT}: step {full_ms:,.1f} ms; "
        f"{parts}: {100 * share:.1f} % of the step",
        flush=True,
    )


def main(repeats: int = 7) -> None:
    """Print every table."""
    host = host_ms(40)
    full = step_of(NUM_RUNNING, RUNNING_CONTEXT, 1)
    small = boot_filled("smollm2", 512)
    print_host("SmolLM2", step_ms(runner_of(small), full, repeats), host)
    del small
    with tempfile.TemporaryDirectory() as folder:
        write_llama(Path(folder), LLAMA_1B, std=0.02)
        runner = runner_of(boot_filled(folder, MAX_MODEL_LEN))
        print_host("1B, random weights", step_ms(runner, full, repeats), host)
        print_growth(runner, repeats)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
