"""SGLang's start-up log, from 0.2 to 0.5. Its "GB" are GiB.

Source: `model_runner.py`, `memory_pool.py`, `cuda_graph_runner.py` and `scheduler.py` over
these versions.
"""

import re

from nanoserve.explain.log_errors import BootMarks, ErrorPattern, StageMark
from nanoserve.explain.log_format import LogFormat
from nanoserve.explain.log_patterns import (
    NUMBER,
    QUOTED,
    Figure,
    count,
    find_figures,
    gib,
    line_pattern,
    number_after,
    share,
)
from nanoserve.explain.logged_boot import Findings

_SIGNS = (
    "server_args=",
    "sglang",
    "Load weight begin",
    "Load weight end",
    "KV Cache is allocated",
    "Memory pool end",
    "max_total_num_tokens=",
    "Capture cuda graph",
    "The server is fired up",
    "--mem-fraction-static",
    "mem_fraction_static",
    "Scheduler hit an exception",
    "#running-req:",
    "#new-token:",
    "token usage:",
    "alloc_req_slots",
    "--max-running-requests",
    "larger than the profiled value",
    "Prefill out of memory. ",
    "Decode out of memory. ",
    "The memory capacity is unbalanced",
    "Rank 0: load weight",
    "router init state:",
)
_PREFIXES = re.compile(
    r"\[(?:0000-00-00 )?00:00:00[\d.,]{0,10}(?: (?:DP|TP|PP|EP|ATTN_TP|ATTN_DP|MOE_EP)0{1,4}){1,4}\]"
    r"|\[gpu(?:_id)?=0|sglang"
)
_PATHS = ("sglang/srt/", "sglang\\srt\\", "/sglang/", "sglang.launch_server", "sgl_kernel")
_READY = "The server is fired up"

_LINES = (
    line_pattern("model_path=", rf"model_path={QUOTED}", Figure("model", str, "first")),
    line_pattern("sglang version", r"version:? v?([\w.+-]{3,40})", Figure("version", str)),
    number_after("tp_size=", Figure("tensor_parallel", count)),
    number_after("mem_fraction_static=", Figure("utilization", share)),
    line_pattern(
        "--mem-fraction-static", rf"-static[= ]{NUMBER}(?![\w.])", Figure("utilization", share)
    ),
    line_pattern(
        "kv_cache_dtype=", r"kv_cache_dtype=['\"]?(\w{2,30})", Figure("kv_cache_dtype", str)
    ),
    line_pattern(
        "Load weight begin", rf"avail mem={NUMBER}\s?GB", Figure("free_bytes", gib, "min")
    ),
    line_pattern(
        "Load weight end",
        rf"Load weight end.{{0,300}}?mem usage={NUMBER}\s?GB",
        Figure("weight_bytes", gib, "max"),
    ),
    line_pattern(
        "KV Cache is allocated",
        rf"#tokens: {NUMBER},",
        Figure("pool_tokens", count, "max"),  # a draft model's pool is the smaller one
    ),
    number_after("max_total_num_tokens=", Figure("pool_tokens", count, "min")),
    number_after("available_gpu_mem=", Figure("left_bytes", gib, "min")),
    number_after("context_len=", Figure("max_model_len", count)),
    number_after("context_length=", Figure("max_model_len", count)),
    number_after("max_running_requests=", Figure("max_num_seqs", count)),
    number_after("chunked_prefill_size=", Figure("max_num_batched_tokens", count)),
    line_pattern(  # the newest write what is recorded before the word graph
        "CUDA graph end",
        rf"CUDA graph end.{{0,80}}?mem usage={NUMBER}\s?GB",
        Figure("graph_bytes", gib, "max"),
    ),
    line_pattern(
        "KV pool holds",
        rf"holds {NUMBER} tokens, fewer than --context-length {NUMBER}",
        Figure("pool_tokens", count, "min"),
        Figure("max_model_len", count),
    ),
    line_pattern(
        "Load weight end", rf"avail mem={NUMBER}\s?GB", Figure("loaded_free_bytes", gib, "min")
    ),
    line_pattern(
        "Capture cuda graph end",
        rf"Capture cuda graph end.{{0,60}}?mem usage={NUMBER}\s?GB",
        Figure("graph_bytes", gib, "max"),
    ),
)
_POOL_LINES = (
    line_pattern(
        "KV Cache is allocated",
        rf"K(?: size)?:? {NUMBER}\s?GB, V(?: size)?:? {NUMBER}\s?GB",
        Figure("key_bytes", gib, "max"),
        Figure("value_bytes", gib, "max"),
    ),
    line_pattern(
        "KV Cache is allocated", rf"KV size: {NUMBER}\s?GB", Figure("pool_bytes", gib, "max")
    ),
)
_SLIDING = re.compile(r"full_layer_tokens=(\d{1,12}), swa_layer_tokens=(\d{1,12})")
_POOL = re.compile(rf"#tokens: {NUMBER}, K(?: size)?:? {NUMBER}\s?GB, V(?: size)?:? {NUMBER}\s?GB")
_STATE = re.compile(rf"conv_state size: {NUMBER}\s?GB, ssm_state size: {NUMBER}\s?GB")
_SERVING = re.compile(r"out of memory\. (?:Try to lower|This should)")
_NEGATIVE = re.compile(r"profiled value -\d")
_NO_ROOM = re.compile(r"within the available (?P<have_bytes>[\d.]{1,12} Gi?B)")
_CHECKPOINTS = re.compile(
    r"needs ~(?P<need_bytes>[\d.]{1,12}GB) but only (?P<have_bytes>[\d.]{1,12}GB)"
)
_REFUSALS = (
    ErrorPattern("Not enough memory. Please try to increase", "no room for pool", None, "pool"),
    ErrorPattern("Not enough memory; please try to increase", "no room for pool", None, "pool"),
    ErrorPattern("Not enough memory to allocate KV cache", "no room for pool", None, "pool"),
    ErrorPattern("Not enought memory", "no room for pool", None, "pool"),  # so spelt in 0.1
    ErrorPattern("larger than the profiled value", "no room for pool", _NEGATIVE, "pool", True),
    ErrorPattern("Memory pool size is too small", "no room for pool", None, "pool"),
    ErrorPattern("Loaded weights leave no GPU memory", "no room for pool", None, "pool"),
    ErrorPattern("leaves no room for the full", "no room for pool", _NO_ROOM, "pool"),
    ErrorPattern("Not enough GPU memory for hybrid", "no room for pool", None, "pool"),
    ErrorPattern("state cache is too small to serve", "no room for pool", None, "pool"),
    ErrorPattern("int8 mamba checkpoint pool needs", "out of memory", _CHECKPOINTS, "pool", True),
    ErrorPattern("insufficient free VRAM for", "out of memory", None, "weights"),
    ErrorPattern("Not enough space for mamba", "too many requests for state", None, "serving"),
    ErrorPattern("alloc_req_slots runs out of memory", "out of memory", None, "serving"),
    ErrorPattern("Out of memory. Please set a smaller number", "out of memory", None, "serving"),
    ErrorPattern("Prefill out of memory. ", "out of memory", _SERVING, "serving", True),
    ErrorPattern("Decode out of memory. ", "out of memory", _SERVING, "serving", True),
    ErrorPattern("Out of memory even after retracting", "out of memory", None, "serving"),
    ErrorPattern("Not enough host memory", "host memory"),
    ErrorPattern("Pinned host memory allocation of", "host memory"),
    ErrorPattern("max_mamba_cache_size is too small", "too many requests for state", None, "pool"),
    ErrorPattern("The memory capacity is unbalanced", "memory changed while measuring"),
    ErrorPattern("Unsupported architectures", "unsupported", None, "start"),
    ErrorPattern("are not supported for now", "unsupported", None, "start"),
    ErrorPattern("error: unrecognized arguments", "option", None, "start"),
)
_STAGE_MARKS = (
    StageMark("load weight begin", "weights"),
    StageMark("load weight end", "pool"),
    StageMark("Load weight begin", "weights"),
    StageMark("Load weight end", "pool"),
    StageMark("Memory pool end", "capture"),
    StageMark("KV Cache is allocated", "pool"),
    StageMark("Capture cuda graph begin", "capture"),
    StageMark("graph begin", "capture"),  # `Capture decode CUDA graph begin` since 0.5.20
    StageMark("CUDA graph end", "serving"),
    StageMark("Capture cuda graph failed", "capture"),
    StageMark("Capture cuda graph end", "serving"),
    StageMark(_READY, "serving"),
)
_TRACE_MARKS = (
    StageMark("in load_model", "weights"),
    StageMark("in init_memory_pool", "pool"),
    StageMark("in _create_buffers", "pool"),
    StageMark("in init_device_graphs", "capture"),
    StageMark("in init_cuda_graphs", "capture"),
    StageMark("in capture_one_batch_size", "capture"),
    StageMark("in capture", "capture"),
    StageMark("in _capture_one_stream", "capture"),
    StageMark("in kernel_warmup", "capture"),
    StageMark("in load_weights", "weights"),
    StageMark("in initialize_model", "weights"),
    StageMark("in get_model", "weights"),
    StageMark("in profile_max_num_token", "pool"),
    StageMark("in _init_pools", "pool"),
    StageMark("in run_batch", "serving"),
    StageMark("in event_loop_normal", "serving"),
    StageMark("in event_loop_overlap", "serving"),
    StageMark("in forward_thread_func", "serving"),
    StageMark("in exposed_step", "serving"),
)


def _add_pool(text: str, findings: Findings) -> None:
    """Sum keys and values, and take weights from what was free before and after them."""
    _add_weights(findings)
    parts = Findings()
    find_figures(text, _POOL_LINES, parts)
    if (sliding := _SLIDING.search(text)) is not None:
        findings.put("pool_bytes", _bytes_of_both(text, sliding), "last", sliding.start())
        return
    keys, values = parts.values.get("key_bytes"), parts.values.get("value_bytes")
    if isinstance(keys, int) and isinstance(values, int):
        size = keys + values + _state_bytes(text)
        findings.put("pool_bytes", size, "last", parts.positions["key_bytes"])
    else:
        findings.put(
            "pool_bytes", parts.values.get("pool_bytes"), "last", parts.positions.get("pool_bytes")
        )


def _add_weights(findings: Findings) -> None:
    """Take weights from what was free before and after them, or what was free from those two."""
    before, after = findings.values.get("free_bytes"), findings.values.get("loaded_free_bytes")
    if not isinstance(after, int):
        return
    position = findings.positions["loaded_free_bytes"]
    if isinstance(before, int):
        findings.put("weight_bytes", before - after, "first", position)
    elif isinstance(weights := findings.values.get("weight_bytes"), int):
        findings.put("free_bytes", after + weights, "first", position)


def _state_bytes(text: str) -> int:
    """Return what a rank sets aside for recurrent layers: as much a part of the pool as keys."""
    found = _STATE.search(text)
    return 0 if found is None else sum(gib(size) or 0 for size in found.groups())


def _bytes_of_both(text: str, sliding: re.Match[str]) -> int | None:
    """Sum the pools of full and of sliding layers, which each rank prints on a line of its own.

    Source: SGLang `memory_pool.py`, `SWAKVPool`.
    """
    counts = {count(group) for group in sliding.groups()}
    pools = {match.groups() for match in _POOL.finditer(text) if count(match[1]) in counts}
    sizes = [gib(size) or 0 for _, keys, values in pools for size in (keys, values)]
    return sum(sizes) or None


SGLANG_LOG = LogFormat(
    engine="sglang",
    signs=_SIGNS,
    start="server_args=",
    ready=(_READY,),
    lines=_LINES,
    marks=BootMarks(
        _REFUSALS,
        _STAGE_MARKS,
        _TRACE_MARKS,
        (
            ErrorPattern("Capture cuda graph failed", "unclear", None, "capture"),
            ErrorPattern("other ranks that didn't finish loading", "unclear", None, "weights"),
            ErrorPattern("Rank 0 scheduler died", "unclear"),
            ErrorPattern("Initialization failed. Please see the error messages", "unclear"),
        ),
    ),
    prefixes=_PREFIXES,
    paths=_PATHS,
    add_figures=_add_pool,
)
