"""What attention costs by itself: `python bench/attention.py [dtype[/pool dtype] ...]`.

All layers of SmolLM2-135M, over a pool filled at random whose blocks lie in no order, so that
nothing comes from a cache. Prints the milliseconds of a decode step and how fast it reads
K and V, and the milliseconds of prefill chunks and how fast they multiply.
"""

import random
import statistics
import sys
import time
from dataclasses import dataclass

import torch

from nanoserve.attention.backend import AttentionInputs
from nanoserve.attention.cpu_backend import CpuAttention
from nanoserve.kernels.kernel_library import load_kernels
from nanoserve.launch.boot_model import read_model
from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepPlan
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import ceil_div

BLOCK_SIZE = 16
NUM_REPEATS = 9
CPU = torch.device("cpu")
DECODES = ((1, 256), (8, 256), (32, 256), (32, 1024), (8, 8192))  # rows, context
CHUNKS = ((512, 0), (512, 1536), (2000, 0))  # new tokens, tokens before them


@dataclass(frozen=True)
class Timing:
    """The median of some runs.

    Attributes:
        milliseconds: Of all layers.
        kv_bytes: K and V of all contexts in all layers.
    """

    milliseconds: float
    kv_bytes: int

    @property
    def gb_per_s(self) -> float:
        """How fast K and V were read."""
        return self.kv_bytes / self.milliseconds / 1e6


def step_inputs(lengths: list[tuple[int, int]]) -> tuple[AttentionInputs, int]:
    """Return a step of requests of (new tokens, tokens before), and the blocks they need."""
    counts = [ceil_div(sum(length), BLOCK_SIZE) for length in lengths]
    blocks = list(range(sum(counts)))
    random.Random(0).shuffle(blocks)
    requests = tuple(
        ScheduledRequest(
            request_id=str(index),
            token_ids=(0,) * length[0],
            num_computed_tokens=length[1],
            block_table=tuple(blocks.pop() for _ in range(count)),
            sampling=SamplingParams(),
            seed=0,
            samples=True,
        )
        for index, (length, count) in enumerate(zip(lengths, counts, strict=True))
    )
    layout = BatchLayout.from_step(StepPlan(0, requests), BLOCK_SIZE)
    return build_step_inputs(layout, CPU).attention, sum(counts)


def random_pool(spec: ModelSpec, num_blocks: int, dtype: torch.dtype) -> KVPool:
    """Return a pool of numbers as they could be."""
    pool = KVPool(spec, num_blocks, BLOCK_SIZE, dtype, CPU)
    for side in (side for layer in pool.layers for side in layer):
        if dtype == torch.int8:
            num_values = BLOCK_SIZE * spec.kv_size
            side[:, :num_values].random_(-127, 128)
            side[:, num_values:].view(torch.float32).fill_(0.02)
        else:
            side.copy_(torch.randn(side.shape))
    return pool


def measure(
    spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, lengths: list[tuple[int, int]]
) -> Timing:
    """Attend in every layer, over and over, and return the median."""
    inputs, num_blocks = step_inputs(lengths)
    pool = random_pool(spec, num_blocks, kv_dtype)
    backend = CpuAttention(load_kernels(), spec)
    num_tokens = sum(num_new for num_new, _ in lengths)
    num_heads, num_kv_heads = spec.num_heads, spec.num_kv_heads
    qkv = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, spec.head_dim).to(dtype)
    q, k, v = qkv.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    prepared = backend.prepare(inputs, dtype)
    seconds = []
    for _ in range(NUM_REPEATS):
        start = time.perf_counter()
        for layer in pool.layers:
            backend.attend(q, k, v, layer, prepared)
        seconds.append(time.perf_counter() - start)
    kv_bytes = pool.num_bytes * sum(map(sum, lengths)) // (num_blocks * BLOCK_SIZE)
    return Timing(1000 * statistics.median(seconds), kv_bytes)


def dtypes_of(name: str) -> tuple[torch.dtype, torch.dtype]:
    """Return the compute dtype and the pool's of a name such as `bfloat16/int8`."""
    compute, _, stored = name.partition("/")
    return getattr(torch, compute), getattr(torch, stored or compute)


def main() -> None:
    """Print the tables of the dtypes named, or of all."""
    spec = read_model("smollm2").spec
    names = sys.argv[1:] or ["float32", "bfloat16", "bfloat16/int8", "bfloat16/float8_e4m3fn"]
    print(f"{torch.get_num_threads()} threads, {load_kernels().describe()}")
    print("decode                 rows  context       ms     GB/s")
    for name in names:
        for rows, context in DECODES:
            timing = measure(spec, *dtypes_of(name), [(1, context - 1)] * rows)
            figures = f"{timing.milliseconds:8.2f} {timing.gb_per_s:8.1f}"
            print(f"{name:22} {rows:4} {context:8} {figures}", flush=True)
    print("prefill                 new   before       ms  GFLOP/s")
    for name in names:
        for new, before in CHUNKS:
            timing = measure(spec, *dtypes_of(name), [(new, before)])
            pairs = new * before + new * (new + 1) // 2
            flops = 4 * spec.num_layers * spec.num_heads * spec.head_dim * pairs
            rate = flops / timing.milliseconds / 1e6
            figures = f"{timing.milliseconds:8.2f} {rate:8.0f}"
            print(f"{name:22} {new:4} {before:8} {figures}", flush=True)


if __name__ == "__main__":
    main()
