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
from nanoserve.explain.log_patterns import gib
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
    "The model's max seq len (",
    "on startup is less than desired GPU memory",
    "derived max_model_len",
    "Engine core initialization failed",
    "EngineCore failed to start",
    "EngineCore encountered",
    "when warming up sampler with",
    "warming up pooler (task=",
    "Error in memory profiling",
    "Maximum concurrency for",
    "Capturing CUDA graph",
    "Capturing cudagraphs",
    "PyTorch activation peak memory takes",
    "Estimated CUDA graph memory:",
    "CUDA graph pool memory:",
    "Cannot auto-fit max_model_len",
    "exceeds available Mamba cache blocks",
    "WorkerProc initialization failed",
)
_PREFIXES = re.compile(
    r"\((?:EngineCore|APIServer|ApiServer|VllmWorker|RayWorkerWrapper|RayWorkerVllm|RayWorkerProc"
    r"|DPCoordinator|Worker)[\w.]{0,40}\s(?:rank=0{1,4}\s)?pid="
    r"|(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)\s00-00\s00:00:00(?:\.0{1,6})?\s{1,3}\[?[\w./]{1,80}\.py:0"
    r"|vllm"
)
_PATHS = ("/vllm/", "\\vllm\\", "vllm._C", "vllm.engine", "vllm.v1", "vllm.entrypoints")
_READY = ("Application startup complete", "Uvicorn running on", "Starting vLLM server on http")

_NEEDED = re.compile(
    r"max seq len \((?P<need_tokens>[\d,]{1,12})\),?\s?\(?(?P<need_bytes>[\d.]{1,12}\s?Gi?B) KV cache is needed"
    r".{0,120}?available(?: KV cache memory)? \((?P<have_bytes>-?[\d.]{1,12}\s?Gi?B)\)"
    r"(?:.{0,160}?maximum model length is (?P<fitting_len>[\d,]{1,12}))?"
)
_STORED = re.compile(
    r"max seq len \((?P<need_tokens>[\d,]{1,12})\) is larger than the maximum number of tokens "
    r"that can be stored in KV cache \((?P<have_tokens>[\d,]{1,12})\)"
)
_FREE = re.compile(  # a healthy boot prints its free memory in the same words
    r"device[^()]{0,20}\((?P<have_bytes>[\d.]{1,12})/[\d.]{1,12} GiB\) on startup is less than"
    r"(?:.{0,80}?\([\d.]{1,12}, (?P<need_bytes>[\d.]{1,12}\s?GiB)\))?"
)
_CHANGED = re.compile(
    r"Initial free memory (?P<have_bytes>[\d.]{1,12}\s?GiB), current free memory "
    r"(?P<need_bytes>[\d.]{1,12}\s?GiB)"
)
_HELD_OUTSIDE = re.compile(
    r"\([\d.]{1,12}/[\d.]{1,12} GiB\) exceed the desired GPU memory utilization "
    r"\([\d.]{1,12}, (?P<have_bytes>[\d.]{1,12}\s?GiB)\)"
)
_NODE_AT_START = re.compile(  # the CPU is the device
    r"\((?P<have_bytes>[\d.]{1,12})/[\d.]{1,12} GiB\) on startup is less than"
    r"(?:.{0,60}?\([\d.]{1,12}, (?P<need_bytes>[\d.]{1,12}\s?GiB)\))?"
)
_NODE_FOR_POOL = re.compile(
    r"\((?P<have_bytes>[\d.]{1,12})/[\d.]{1,12} GiB\) on kv cache allocation is less than requested"
    r" memory for kv \((?P<need_bytes>[\d.]{1,12})"
)
_NODE_USED_UP = re.compile(
    r"uses (?P<need_bytes>[\d.]{1,12} GiB) \(model.{0,40}?more than the (?P<have_bytes>[\d.]{1,12} GiB)"
)
_DECODER = re.compile(
    r"reserves (?P<need_bytes>[\d.]{1,12} GiB).{0,120}?only (?P<have_bytes>-?[\d.]{1,12} GiB)"
)
_OPENVINO = re.compile(r"model is higher than the total available device memory")
_STATES = re.compile(
    r"\(\d{1,9}\) exceeds available Mamba cache blocks \((?P<fitting_seqs>\d{1,9})\)"
)
_IN_USE = re.compile(r"initial_memory_usage=([\d.]{1,12})GiB")
_REFUSALS = (
    ErrorPattern(
        "To serve at least one request with the model", "request larger than pool", _NEEDED, "pool"
    ),
    ErrorPattern("The model's max seq len (", "request larger than pool", _STORED, "pool"),
    ErrorPattern("No available memory for the cache blocks", "no room for pool", None, "pool"),
    ErrorPattern("Free memory on device", "free memory below utilization", _FREE, "start", True),
    ErrorPattern("Cannot auto-fit max_model_len", "no room for pool", None, "pool"),
    ErrorPattern(
        "Externally held weights", "free memory below utilization", _HELD_OUTSIDE, "start", True
    ),
    ErrorPattern(
        "Available memory on node", "free memory below utilization", _NODE_AT_START, "start", True
    ),
    ErrorPattern("Available memory on node", "no room for pool", _NODE_FOR_POOL, "pool", True),
    ErrorPattern("The worker already uses", "no room for pool", _NODE_USED_UP, "pool", True),
    ErrorPattern("frontend multimodal GPU decoding reserves", "no room for pool", _DECODER, "pool"),
    ErrorPattern("The error occurred during profile run", "out of memory", None, "profile"),
    ErrorPattern("The required memory size", "out of memory", _OPENVINO, "weights", True),
    ErrorPattern("too large for the current device's HBM", "out of memory", None, "weights"),
    ErrorPattern("Out of memory! No free blocks", "out of memory", None, "serving"),
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
        "EngineCore encountered an issue",
        "EngineCore encountered a fatal error",
        "WorkerProc initialization failed",
        "died unexpectedly, shutting down executor",
        "Engine loop has died",
        "EngineDeadError",
        "AsyncEngineDeadError",
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
    StageMark("in _initialize_kv_cache_tensors", "pool"),
    StageMark("in initialize_cache", "pool"),
    StageMark("in get_model", "weights"),
    StageMark("in load_weights", "weights"),
    StageMark("in initialize_model", "weights"),
    StageMark("in warm_up_model", "capture"),
    StageMark("in _warm_up_model", "capture"),
    StageMark("in capture", "capture"),
    StageMark("in execute_model", "serving"),
    StageMark("in _process_engine_step", "serving"),
)
_WARM_UP = "when warming up "  # the sampler or the pooler, in the profile or after the pool


def _graph_rule(text: str, findings: Findings) -> None:
    """Say whether the graphs' estimate was taken off before the pool was sized."""
    if "CUDA graph memory profiling is enabled" in text:
        findings.put("is_graph_estimate_in_budget", True)
    elif "CUDA graph memory profiling will be enabled by default" in text:
        findings.put("is_graph_estimate_in_budget", False)


def _add_figures(text: str, findings: Findings) -> None:
    """Add what takes more than one line: the graphs' rule, and what was free at the start."""
    _graph_rule(text, findings)
    _free_at_start(text, findings)


def _free_at_start(text: str, findings: Findings) -> None:
    """Take what was free from what was in use once the weights were loaded.

    Source: `determine_num_available_blocks` of 0.6.4: `total - free` of the whole device, other
    processes included, which its non-torch memory counts as its own.
    """
    used = _IN_USE.search(text)
    total, weights = findings.values.get("total_bytes"), findings.values.get("weight_bytes")
    if used is None or not isinstance(total, int) or not isinstance(weights, int):
        return
    findings.put("free_bytes", total - (gib(used[1]) or 0) + weights, "first", used.start())


def _stage_of_warm_up(text: str, error: LoggedError) -> LoggedError:
    """Take the sampler's warm-up for part of the capture unless the profile ran it."""
    if _WARM_UP not in text or error.kind != "out of memory":
        return error
    return error if error.stage == "profile" else replace(error, stage="capture")


VLLM_LOG = LogFormat(
    engine="vllm",
    signs=_SIGNS,
    prefixes=_PREFIXES,
    paths=_PATHS,
    start="vLLM API server version",
    ready=_READY,
    lines=VLLM_LINES,
    marks=BootMarks(_REFUSALS, _STAGE_MARKS, _TRACE_MARKS, _UNCLEAR),
    add_figures=_add_figures,
    amend_error=_stage_of_warm_up,
)
