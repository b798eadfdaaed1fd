"""Options of the planner's commands: frozen; the flags are made from them."""

from dataclasses import dataclass, field
from typing import Any


def plan_option(default: Any, text: str) -> Any:
    """Return a field of an option class, with its help."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What is planned; `help` of each field is its meaning. `cli.plan` makes a query of it."""

    gpu: str | None = plan_option(
        None, "GPU by name, several as in '2x h100' (default: this machine's device or memory)"
    )
    num_gpus: int | None = plan_option(None, "how many GPUs (default: as --gpu says, else 1)")
    gpu_mem: str | None = plan_option(
        None, "memory of each GPU, e.g. 24GiB, instead of the table's"
    )
    bandwidth: float | None = plan_option(None, "memory bandwidth in GB/s, instead of the table's")
    tflops: float | None = plan_option(
        None, "dense 16-bit TFLOP/s of each GPU, instead of the table's"
    )
    engine: str | None = plan_option(
        None,
        "vllm, sglang, tensorrt-llm, llama.cpp or nanoserve, with a version as in vllm@0.21 "
        "(default: the newest vllm; without a GPU, nanoserve)",
    )
    quantization: str | None = plan_option(
        None, "weights in this format, e.g. fp8, awq, int8, Q4_K_M (default: the checkpoint's)"
    )
    kv_cache_dtype: str = plan_option("auto", "format of keys and values, e.g. fp8, q8_0")
    tp: int | None = plan_option(None, "GPUs that share each layer (default: all of them)")
    pp: int = plan_option(1, "pipeline stages")
    max_model_len: int | None = plan_option(
        None, "longest request in tokens (default: the model's longest, or what fits)"
    )
    max_num_seqs: int | None = plan_option(
        None, "requests at once that the engine is sized for (default: the engine's)"
    )
    max_num_batched_tokens: int | None = plan_option(
        None, "token budget of one step (default: the engine's)"
    )
    gpu_memory_utilization: float | None = plan_option(
        None, "share of the GPU's memory, as the engine means it (default: the engine's)"
    )
    enforce_eager: bool = plan_option(False, "record no decode steps")
    workload: str | None = plan_option(
        None,
        "lengths of requests: prompt=1000,output=6000, or p50=1800,p95=2400, or a .csv or "
        ".jsonl file of them (default: 8,192 tokens)",
    )
    plot: str | None = plan_option(
        None, "picture of the plan: FILE.png, FILE.svg, or FILE.html with everything in it"
    )


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What is looked for instead of planned as asked."""

    find: str | None = plan_option(
        None, "look for max-len, gpus, precision or users, everything else as asked"
    )
    users: int | None = plan_option(
        None,
        "with --find: requests of the workload (of max-len: of that length) at once (default: 1)",
    )
