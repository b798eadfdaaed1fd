"""vLLM's start-up log, from 0.1 to 0.3x, and its forks' that kept the wording.

The figures' lines are in `vllm_lines`; here are its refusals, its stages and how a boot is
put together.

Source: `check_enough_kv_cache_memory`, `request_memory` and `determine_available_memory` over
these versions.
"""

import re
from dataclasses import replace

from nanoserve.explain.log_errors import BootMarks, ErrorPattern, StageMark
from nanoserve.explain.log_format import LogFormat
from nanoserve.explain.logged_boot import Findings, LoggedError
from nanoserve.explain.vllm_lines import VLLM_LINES

_SIGNS = (
    "vLLM API server version",
    "LLM engine (v",
    "vllm",
    "gpu_memory_utilization",
    "GPU blocks:",
    "cuda blocks:",
    "Available KV cache memory:",
    "GPU KV cache size:",
    "Graph capturing finished",
    "Loading model weights took",
    "Model loading took",
    "No available memory for the cache blocks",
    "To serve at least one request with the model",
    "on startup is less than desired GPU memory",
    "derived max_model_len",
)
_READY = ("Application startup complete", "Uvicorn running on", "Starting vLLM server on http")

_NEEDED = re.compile(
    r"max seq len \((?P<need_tokens>[\d,]{1,12})\),?\s?\(?(?P<need_bytes>[\d.]{1,12}\s?GiB) KV cache is needed"
    r".{0,120}?available(?: KV cache memory)? \((?P<have_bytes>-?[\d.]{1,12}\s?GiB)\)"
    r"(?:.{0,160}?maximum model length is (?P<fitting_len>[\d,]{1,12}))?"
)
_STORED = re.compile(
    r"max seq len \((?P<need_tokens>[\d,]{1,12})\) is larger than the maximum number of tokens "
    r"that can be stored in KV cache \((?P<have_tokens>[\d,]{1,12})\)"
)
_FREE = re.compile(  # a healthy boot prints its free memory in the same words
    r"device[^()]{0,20}\((?P<have_bytes>[\d.]{1,12})/[\d.]{1,12} GiB\) on startup is less than desired"
    r"(?:.{0,60}?utilization \([\d.]{1,12}, (?P<need_bytes>[\d.]{1,12}\s?GiB)\))?"
)
_CHANGED = re.compile(
    r"Initial free memory (?P<have_bytes>[\d.]{1,12}\s?GiB), current free memory "
    r"(?P<need_bytes>[\d.]{1,12}\s?GiB)"
)
_STATES = re.compile(
    r"\(\d{1,9}\) exceeds available Mamba cache blocks \((?P<fitting_seqs>\d{1,9})\)"
)
_REFUSALS = (
    ErrorPattern(
        "To serve at least one request with the model", "request larger than pool", _NEEDED, "pool"
    ),
    ErrorPattern("The model's max seq len (", "request larger than pool", _STORED, "pool"),
    ErrorPattern("No available memory for the cache blocks", "no room for pool", None, "pool"),
    ErrorPattern("Free memory on device", "free memory below utilization", _FREE, "start", True),
    ErrorPattern(
        "Error in memory profiling", "memory changed while measuring", _CHANGED, "profile"
    ),
    ErrorPattern("max_num_seqs (", "too many requests for state", _STATES, "pool", True),
    ErrorPattern("is less than desired GPU memory", "free memory below utilization", None, "start"),
    ErrorPattern("are not supported for now", "unsupported", None, "start"),
    ErrorPattern("has no vLLM implementation", "unsupported", None, "start"),
    ErrorPattern("Unknown quantization method", "unsupported", None, "start"),
    ErrorPattern("Bfloat16 is only supported on GPUs", "unsupported", None, "start"),
    ErrorPattern(
        "quantization method is not supported for the current GPU", "unsupported", None, "start"
    ),
    ErrorPattern("is greater than the derived max_model_len", "option", None, "start"),
    ErrorPattern("error: unrecognized arguments", "option", None, "start"),
)
_UNCLEAR = tuple(  # what is printed whatever stopped the engine
    ErrorPattern(anchor, "unclear")
    for anchor in (
        "EngineCore failed to start",
        "EngineCore hit an exception",
        "Engine core initialization failed",
        "Engine process failed to start",
    )
)
_STAGE_MARKS = (
    StageMark("Initializing an LLM engine", "weights"),
    StageMark("Initializing a V1 LLM engine", "weights"),
    StageMark("Starting to load model", "weights"),
    StageMark("Loading safetensors checkpoint", "weights"),
    StageMark("Model loading took", "profile"),
    StageMark("Loading model weights took", "profile"),
    StageMark("blocks: ", "pool"),
    StageMark("Available KV cache memory:", "pool"),
    StageMark("GPU KV cache size:", "pool"),
    StageMark("Maximum concurrency for", "pool"),
    StageMark("Capturing the model for CUDA graphs", "capture"),
    StageMark("Capturing cudagraphs", "capture"),
    StageMark("Capturing CUDA graph", "capture"),
    StageMark("Graph capturing finished", "serving"),
    *(StageMark(anchor, "serving") for anchor in _READY),
)
_TRACE_MARKS = (
    StageMark("in load_model", "weights"),
    StageMark("in create_weights", "weights"),
    StageMark("in process_weights_after_loading", "weights"),
    StageMark("in profile_run", "profile"),
    StageMark("in profile_num_available_blocks", "profile"),
    StageMark("in determine_num_available_blocks", "profile"),
    StageMark("in determine_available_memory", "profile"),
    StageMark("in profile_cudagraph_memory", "capture"),
    StageMark("in init_cache_engine", "pool"),
    StageMark("in _allocate_kv_cache", "pool"),
    StageMark("in allocate_gpu_cache", "pool"),
    StageMark("in initialize_kv_cache", "pool"),
    StageMark("in initialize_from_config", "pool"),
    StageMark("in capture_model", "capture"),
    StageMark("in _capture_cudagraphs", "capture"),
    StageMark("in compile_or_warm_up_model", "capture"),
    StageMark("in execute_model", "serving"),
)
_SAMPLER = "when warming up sampler with"


def _graph_rule(text: str, findings: Findings) -> None:
    """Say whether the graphs' estimate was taken off before the pool was sized."""
    if "CUDA graph memory profiling is enabled" in text:
        findings.put("is_graph_estimate_in_budget", True)
    elif "CUDA graph memory profiling will be enabled by default" in text:
        findings.put("is_graph_estimate_in_budget", False)


def _stage_of_sampler(text: str, error: LoggedError) -> LoggedError:
    return replace(error, stage="capture") if _SAMPLER in text else error


VLLM_LOG = LogFormat(
    engine="vllm",
    signs=_SIGNS,
    start="vLLM API server version",
    ready=_READY,
    lines=VLLM_LINES,
    marks=BootMarks(_REFUSALS, _STAGE_MARKS, _TRACE_MARKS, _UNCLEAR),
    add_figures=_graph_rule,
    amend_error=_stage_of_sampler,
)
