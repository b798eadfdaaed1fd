"""TensorRT-LLM's start-up log, 0.9 to 1.2, from the C++ runtime and from PyTorch.

Source: `kvCacheManager.cpp`, `trtGptModelInflightBatching.cpp`, `_util.py` (KV cache
creator) and `model_loader.py`.
"""

import re
from dataclasses import replace

from nanoserve.explain.log_errors import BootMarks, ErrorPattern, StageMark
from nanoserve.explain.log_format import LogFormat
from nanoserve.explain.log_patterns import (
    NUMBER,
    Figure,
    count,
    gib,
    line_pattern,
    number_after,
    setting,
    share,
    sized,
)
from nanoserve.explain.logged_boot import Findings, LoggedError, Stage

_SIGNS = (
    "[TensorRT-LLM]",
    "[TRT-LLM]",
    "TensorRT-LLM",
    "[MemUsageChange]",
    "for max tokens in paged KV cache",
    "paged kv cache: total",
    "KV cache primary pool",
    "Number of tokens per block",
    "bytes for k/v cache",
    "Loaded engine size:",
    "TRTGptModel ",
    "CUDA runtime error in",
    "Max KV cache pages per sequence",
    "tokens in paged KV cache",
    "maxTokensInPagedKvCache",
    "Executor creation failed due to insufficient GPU memory",
    "trtllm-serve",
    "nv_trt_llm",
)
_PREFIXES = re.compile(r"\[TensorRT-LLM\]|\[TRT-LLM\]|\[TRT\]|trtllm|tensorrt_llm|tensorrt-llm")
_PATHS = ("tensorrt_llm/", "tensorrt_llm\\", "libtensorrt_llm", "tritonserver/backends/tensorrtllm")
_READY = ("Engine loaded and ready to serve", "Application startup complete", "Executor started")
_SIZE = r"(-?[\d.,]{1,20}\s?[KMG]i?B)"

_LINES = (
    line_pattern("TensorRT-LLM version:", r"version: v?([\w.+-]{3,40})", Figure("version", str)),
    line_pattern("TensorRT LLM version:", r"version: v?([\w.+-]{3,40})", Figure("version", str)),
    line_pattern(
        "paged kv cache: total",
        rf"total: {_SIZE}, available: {_SIZE}",
        Figure("total_bytes", sized, "min"),
        Figure("free_bytes", sized, "min"),
    ),
    line_pattern("device total memory", rf"memory {_SIZE}", Figure("total_bytes", sized, "min")),
    line_pattern(
        "Max tokens in paged KV cache:",
        r"cache: (\d{1,12})\. Allocating (\d{4,15} bytes)",
        Figure("pool_tokens", count),
        Figure("pool_bytes", sized),
    ),
    line_pattern(
        "Total GPU memory (GiB):", rf"\(GiB\): {NUMBER}", Figure("total_bytes", gib, "min")
    ),
    number_after("fraction is set", Figure("utilization", share)),
    *setting("free_gpu_memory_fraction", Figure("utilization", share)),
    line_pattern("Allocate ", r"Allocate (\d{4,15} bytes) for k/v", Figure("pool_bytes", sized)),
    line_pattern(
        "Using ", r"Using (\d{1,12}) tokens in paged KV cache", Figure("pool_tokens", count)
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
        "Allocated", rf"Allocated {_SIZE} for max tokens", Figure("pool_bytes", sized, "min")
    ),
    number_after("KV cache primary pool:", Figure("num_blocks", count, "min")),
    number_after("blocks in KV cache:", Figure("num_blocks", count, "min")),
    number_after("primary blocks=", Figure("num_blocks", count, "min")),
    number_after("tokens per block:", Figure("block_size", count)),
    number_after("max_seq_len=", Figure("max_model_len", count)),
    number_after("Adjusted max_seq_len to", Figure("max_model_len", count)),
    number_after("maxSequenceLen:", Figure("max_model_len", count)),
    number_after("max_num_requests=", Figure("max_num_seqs", count)),
    number_after("maxBatchSize:", Figure("max_num_seqs", count)),
    number_after("max_num_tokens=", Figure("max_num_batched_tokens", count)),
    number_after("maxNumTokens:", Figure("max_num_batched_tokens", count)),
    line_pattern(
        "Allocated",
        rf"Allocated {_SIZE} for execution context",
        Figure("activation_bytes", sized, "max"),
    ),
    line_pattern(
        "(torch + non-torch):", rf"\): {NUMBER} GiB", Figure("consumed_bytes", gib, "max")
    ),
)
_MALLOC = re.compile(r"CUDA runtime error in .{0,160}?: out of memory")
_REQUESTED = re.compile(r"memory \((?P<need_bytes>\d{1,15} bytes)\) could not be allocated")
_CREATED = re.compile(r"component creation attempt \(GiB\): (?P<have_bytes>[\d.]{1,12})")
_ONE_SEQUENCE = re.compile(
    r"maxTokensInPagedKvCache(?: \((?P<have_tokens>\d{1,12})\))? must be large enough"
)
_NCCL = re.compile(r"NCCL error.{0,200}?out of memory")
_BUFFER = re.compile(r"(?:Requested size was|size) (?P<need_bytes>\d{1,15} bytes)")
_COMPONENT = re.compile(r"could not be created: ([A-Z][\w ]{2,60})")
_MODEL = re.compile(rf"\b[Mm]odel: {NUMBER} / {NUMBER}")
_COMPONENTS: dict[str, Stage] = {  # as the PyTorch runtime calls what it makes, in its order
    "Model resources": "capture",
    "Model": "weights",
    "Draft model": "weights",
    "Initial KV Cache": "profile",
    "KV cache": "pool",
}
_REFUSALS = (
    ErrorPattern("Executor creation failed due to insufficient", "out of memory", _CREATED),
    ErrorPattern(
        "maxTokensInPagedKvCache", "request larger than pool", _ONE_SEQUENCE, "pool", True
    ),
    ErrorPattern("Impossible to fit in any sequence in kvCache", "no room for pool", None, "pool"),
    ErrorPattern("Error Code 1: Cuda Runtime (out of memory)", "out of memory"),
    ErrorPattern("OutOfMemory (", "out of memory", _BUFFER),
    ErrorPattern("Failed, NCCL error", "out of memory", _NCCL, None, True),
    ErrorPattern("CUDA runtime error in", "out of memory", _MALLOC, None, True),
    ErrorPattern("Requested amount of GPU memory", "out of memory", _REQUESTED),
    ErrorPattern("Insufficient memory for KV cache", "no room for pool", None, "pool"),
    ErrorPattern("Cannot allocate memory for the KV cache", "no room for pool", None, "pool"),
    ErrorPattern("No memory available to allocate KV cache", "no room for pool", None, "pool"),
    ErrorPattern("GPUs are available, but", "option", None, "start"),
    ErrorPattern("Unsupported model architecture", "unsupported", None, "start"),
    ErrorPattern("Unknown architecture for AutoModelForCausalLM", "unsupported", None, "start"),
)
_STAGE_MARKS = (
    StageMark("Loading weights", "weights"),
    StageMark("Loaded engine size", "weights"),
    StageMark("Allocated", "profile"),
    StageMark("Memory usage when calculating max tokens", "pool"),
    StageMark("KV cache primary pool", "pool"),
    StageMark("Peak memory during memory usage profiling", "pool"),
    StageMark("Estimated max tokens in KV cache", "pool"),
    StageMark("for max tokens in paged KV cache", "capture"),
    StageMark("CUDA graph", "capture"),
    *(StageMark(anchor, "serving") for anchor in _READY),
)
_TRACE_MARKS = (
    StageMark("in load_weights", "weights"),
    StageMark("in load_model", "weights"),
    StageMark("in _load_model", "weights"),
    StageMark("in load", "weights"),
    StageMark("in estimate_max_tokens", "profile"),
    StageMark("in try_prepare_estimation", "profile"),
    StageMark("in configure_kv_cache_capacity", "profile"),
    StageMark("in build_managers", "pool"),
    StageMark("in _create_kv_cache_manager", "pool"),
    StageMark("in _run_cuda_graph_warmup", "capture"),
    StageMark("in warmup", "capture"),
    StageMark("in _executor_loop", "serving"),
    StageMark("in _executor_loop_overlap", "serving"),
    StageMark("in _forward_step", "serving"),
)

_PAGES = re.compile(r"pages per sequence: (\d{1,9})")


def _stage_of_component(text: str, error: LoggedError) -> LoggedError:
    """Take the stage from the component that could not be made, where the runtime names it."""
    found = _COMPONENT.search(text)
    if found is None or error.kind != "out of memory":
        return error
    stages = (stage for name, stage in _COMPONENTS.items() if found[1].startswith(name))
    return replace(error, stage=next(stages, "profile"))


def _add_figures(text: str, findings: Findings) -> None:
    """Add what takes more than one number to know."""
    _length_of_pages(text, findings)
    _weights_of_model(text, findings)


def _weights_of_model(text: str, findings: Findings) -> None:
    """Take the weights from what was free before and after the model was made."""
    found = _MODEL.search(text)
    if found is not None:
        before, after = gib(found[1]), gib(found[2])
        if before is not None and after is not None:
            findings.put("weight_bytes", before - after, "first", found.start())


def _length_of_pages(text: str, findings: Findings) -> None:
    """Take the longest length from the pages a sequence may have, where nothing else says it."""
    pages, block_size = _PAGES.search(text), findings.values.get("block_size")
    if pages is not None and isinstance(block_size, int):
        findings.put("max_model_len", int(pages[1]) * block_size, "first", pages.start())


TENSORRT_LOG = LogFormat(
    engine="tensorrt-llm",
    signs=_SIGNS,
    start="TensorRT-LLM version:",
    ready=_READY,
    lines=_LINES,
    marks=BootMarks(_REFUSALS, _STAGE_MARKS, _TRACE_MARKS),
    prefixes=_PREFIXES,
    paths=_PATHS,
    add_figures=_add_figures,
    amend_error=_stage_of_component,
)
