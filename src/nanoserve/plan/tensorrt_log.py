"""TensorRT-LLM's start-up log, 0.9 to 1.2, from the C++ runtime and from PyTorch.

Source: `kvCacheManager.cpp`, `trtGptModelInflightBatching.cpp`, `_util.py` (KV cache
creator) and `model_loader.py`.
"""

from nanoserve.plan.log_errors import ErrorPattern, StageMark, failed_memory, find_error
from nanoserve.plan.log_patterns import (
    NUMBER,
    Figure,
    count,
    find_figures,
    gib,
    line_pattern,
    share,
    sized,
)
from nanoserve.plan.logged_boot import Findings, LoggedBoot

MARKS = (
    "[TensorRT-LLM]",
    "[TRT-LLM]",
    "TensorRT-LLM",
    "[MemUsageChange]",
    "for max tokens in paged KV cache",
    "paged kv cache: total",
    "KV cache primary pool",
    "Number of tokens per block",
)
START = "TensorRT-LLM version:"
_READY = ("Engine loaded and ready to serve", "Application startup complete", "Executor started")
_SIZE = r"(-?[\d.,]{1,20}\s?[KMG]i?B)"

_PATTERNS = (
    line_pattern("TensorRT-LLM version:", r"version: v?([\w.+-]{3,40})", Figure("version", str)),
    line_pattern(
        "paged kv cache: total",
        rf"total: {_SIZE}, available: {_SIZE}",
        Figure("total_bytes", sized, "min"),
        Figure("free_bytes", sized, "min"),
    ),
    line_pattern("device total memory", rf"memory {_SIZE}", Figure("total_bytes", sized, "min")),
    line_pattern("fraction is set", rf"set {NUMBER}", Figure("utilization", share)),
    line_pattern(
        "free_gpu_memory_fraction",
        rf"free_gpu_memory_fraction['\"]?(?:=|:\s?){NUMBER}",
        Figure("utilization", share),
    ),
    line_pattern("Loaded engine size:", rf"size: {_SIZE}", Figure("weight_bytes", sized, "max")),
    line_pattern(
        "Memory used after loading model weights (inside torch)",
        rf"\) in memory usage profiling: {_SIZE}",
        Figure("weight_bytes", sized, "max"),
    ),
    line_pattern(
        "for max tokens in paged KV cache",
        rf"cache \({NUMBER}\)",
        Figure("pool_tokens", count, "min"),
    ),
    line_pattern(
        "[MemUsageChange] Allocated",
        rf"Allocated {_SIZE} for max tokens",
        Figure("pool_bytes", sized, "min"),
    ),
    line_pattern(
        "Allocated", rf"Allocated {_SIZE} for max tokens", Figure("pool_bytes", sized, "min")
    ),
    line_pattern("KV cache primary pool", rf"pool: {NUMBER}", Figure("num_blocks", count, "min")),
    line_pattern("blocks in KV cache", rf"cache: {NUMBER}", Figure("num_blocks", count, "min")),
    line_pattern("tokens per block:", rf"block: {NUMBER}", Figure("block_size", count)),
    line_pattern("max_seq_len=", rf"max_seq_len={NUMBER}", Figure("max_model_len", count)),
    line_pattern(
        "Adjusted max_seq_len to", rf"max_seq_len to {NUMBER}", Figure("max_model_len", count)
    ),
    line_pattern("max_num_requests=", rf"max_num_requests={NUMBER}", Figure("max_num_seqs", count)),
    line_pattern(
        "max_num_tokens=", rf"max_num_tokens={NUMBER}", Figure("max_num_batched_tokens", count)
    ),
    line_pattern(
        "(torch + non-torch):", rf"\): {NUMBER} GiB", Figure("consumed_bytes", gib, "max")
    ),
)
_REFUSALS = (
    ErrorPattern("Insufficient memory for KV cache", "no room for pool", None, "pool"),
    ErrorPattern("Cannot allocate memory for the KV cache", "no room for pool", None, "pool"),
    ErrorPattern("No memory available to allocate KV cache", "no room for pool", None, "pool"),
    ErrorPattern("Unsupported model architecture", "unsupported", None, "start"),
    ErrorPattern("Unknown architecture for AutoModelForCausalLM", "unsupported", None, "start"),
)
_STAGE_MARKS = (
    StageMark("Loading weights", "weights"),
    StageMark("Loaded engine size", "weights"),
    StageMark("Allocated", "profile"),
    StageMark("Memory usage when calculating max tokens", "pool"),
    StageMark("KV cache primary pool", "pool"),
    StageMark("for max tokens in paged KV cache", "capture"),
    StageMark("CUDA graph", "capture"),
    *(StageMark(anchor, "serving") for anchor in _READY),
)


def read_tensorrt(text: str) -> LoggedBoot:
    """Read one boot of TensorRT-LLM.

    Args:
        text: As `log_text.plain_log` returns it.
    """
    findings = Findings()
    find_figures(text, _PATTERNS, findings)
    findings.put("total_bytes", failed_memory(text).total_bytes, "first")
    error = find_error(text, _REFUSALS, _STAGE_MARKS, (), {})
    is_ready = any(anchor in text for anchor in _READY)
    boot = LoggedBoot(engine="tensorrt-llm", is_ready=is_ready, error=error)
    return findings.complete(boot)
