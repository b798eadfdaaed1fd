"""Options of the planner's commands: frozen; the flags are made from them."""

from dataclasses import dataclass, field
from typing import Any


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What is planned; `help` of each field is its meaning. `cli.plan` makes a query of it."""

    gpu: str | None = _option(
        None, "GPU by name, several as in '2x h100' (default: this machine's device or memory)"
    )
    num_gpus: int | None = _option(None, "how many GPUs (default: as --gpu says, else 1)")
    gpu_mem: str | None = _option(None, "memory of each GPU, e.g. 24GiB, instead of the table's")
    bandwidth: float | None = _option(None, "memory bandwidth in GB/s, instead of the table's")
    tflops: float | None = _option(None, "dense 16-bit TFLOP/s of each GPU, instead of the table's")
    engine: str | None = _option(
        None,
        "vllm, sglang, tensorrt-llm, llama.cpp or nanoserve, with a version as in vllm@0.21 "
        "(default: the newest vllm; without a GPU, nanoserve)",
    )
    quantization: str | None = _option(
        None, "weights in this format, e.g. fp8, awq, int8, Q4_K_M (default: the checkpoint's)"
    )
    kv_cache_dtype: str = _option("auto", "format of keys and values, e.g. fp8, q8_0")
    tp: int | None = _option(None, "GPUs that share each layer (default: all of them)")
    pp: int = _option(1, "pipeline stages")
    max_model_len: int | None = _option(
        None, "longest request in tokens (default: the model's longest, or what fits)"
    )
    max_num_seqs: int | None = _option(
        None, "requests at once that the engine is sized for (default: the engine's)"
    )
    max_num_batched_tokens: int | None = _option(
        None, "token budget of one step (default: the engine's)"
    )
    gpu_memory_utilization: float | None = _option(
        None, "share of the GPU's memory, as the engine means it (default: the engine's)"
    )
    enforce_eager: bool = _option(False, "record no decode steps")
    workload: str | None = _option(
        None,
        "lengths of requests: prompt=1000,output=6000, or p50=1800,p95=2400, or a .csv or "
        ".jsonl file of them (default: 8,192 tokens)",
    )
