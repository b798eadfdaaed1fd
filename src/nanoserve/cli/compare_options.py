"""Options of `nanoserve compare`: what is varied; the flags are made from them."""

from dataclasses import dataclass

from nanoserve.cli.plan_options import plan_option

VARIED = ("gpu", "quantization", "kv_cache_dtype", "tp")  # of the planner's options: lists here


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What is varied; each a list with commas."""

    gpu: str | None = plan_option(
        None, "GPUs by name, e.g. 'h100,2x a100 80gb' (default: this machine's device or memory)"
    )
    quantization: str | None = plan_option(
        None, "weight formats, e.g. bf16,fp8,awq (default: the checkpoint's and coarser ones)"
    )
    kv_cache_dtype: str | None = plan_option(
        None, "formats of keys and values, e.g. auto,fp8 (default: auto and 8 bits)"
    )
    tp: str | None = plan_option(
        None, "GPUs that share each layer, e.g. 1,2,4 (default: all of them)"
    )
