"""SGLang's start-up log, from 0.2 to 0.5. Its "GB" are GiB.

Source: `model_runner.py`, `memory_pool.py`, `cuda_graph_runner.py` and `scheduler.py` over
these versions.
"""

from dataclasses import replace

from nanoserve.plan.log_errors import ErrorPattern, StageMark, failed_memory, find_error
from nanoserve.plan.log_patterns import (
    NUMBER,
    QUOTED,
    Figure,
    count,
    find_figures,
    gib,
    line_pattern,
    share,
)
from nanoserve.plan.logged_boot import Findings, LoggedBoot

MARKS = (
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
)
START = "server_args="
_READY = "The server is fired up"

_PATTERNS = (
    line_pattern("model_path=", rf"model_path={QUOTED}", Figure("model", str, "first")),
    line_pattern("sglang version", r"version:? v?([\w.+-]{3,40})", Figure("version", str)),
    line_pattern("tp_size=", rf"tp_size={NUMBER}", Figure("tensor_parallel", count)),
    line_pattern(
        "mem_fraction_static=", rf"mem_fraction_static={NUMBER}", Figure("utilization", share)
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
    line_pattern(
        "max_total_num_tokens=",
        rf"max_total_num_tokens={NUMBER}",
        Figure("pool_tokens", count, "min"),
    ),
    line_pattern("context_len=", rf"context_len={NUMBER}", Figure("max_model_len", count)),
    line_pattern(
        "max_running_requests=", rf"max_running_requests={NUMBER}", Figure("max_num_seqs", count)
    ),
    line_pattern(
        "chunked_prefill_size=",
        rf"chunked_prefill_size={NUMBER}",
        Figure("max_num_batched_tokens", count),
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
    line_pattern(
        "Load weight end", rf"avail mem={NUMBER}\s?GB", Figure("loaded_bytes", gib, "min")
    ),
)
_REFUSALS = (
    ErrorPattern("Not enough memory. Please try to increase", "no room for pool", None, "pool"),
    ErrorPattern("Not enough memory; please try to increase", "no room for pool", None, "pool"),
    ErrorPattern("max_mamba_cache_size is too small", "too many requests for state", None, "pool"),
    ErrorPattern("Capture cuda graph failed", "unclear", None, "capture"),
    ErrorPattern("The memory capacity is unbalanced", "memory changed while measuring"),
    ErrorPattern("Unsupported architectures", "unsupported", None, "start"),
    ErrorPattern("are not supported for now", "unsupported", None, "start"),
    ErrorPattern("error: unrecognized arguments", "option", None, "start"),
)
_STAGE_MARKS = (
    StageMark("Load weight begin", "weights"),
    StageMark("Load weight end", "pool"),
    StageMark("Memory pool end", "capture"),
    StageMark("KV Cache is allocated", "pool"),
    StageMark("Capture cuda graph begin", "capture"),
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
)


def read_sglang(text: str) -> LoggedBoot:
    """Read one boot of SGLang.

    Args:
        text: As `log_text.plain_log` returns it.
    """
    findings = Findings()
    find_figures(text, _PATTERNS, findings)
    _add_pool(text, findings)
    findings.put("total_bytes", failed_memory(text).total_bytes, "first")
    error = find_error(text, _REFUSALS, _STAGE_MARKS, _TRACE_MARKS, {})
    if error is not None and error.kind == "unclear" and "out of memory" in error.text:
        error = replace(error, kind="out of memory")
    boot = LoggedBoot(engine="sglang", is_ready=_READY in text, error=error)
    return findings.complete(boot)


def _add_pool(text: str, findings: Findings) -> None:
    """Sum keys and values, and take weights from what was free before and after them."""
    parts = Findings()
    find_figures(text, _POOL_LINES, parts)
    keys, values = parts.values.get("key_bytes"), parts.values.get("value_bytes")
    if isinstance(keys, int) and isinstance(values, int):
        findings.put("pool_bytes", keys + values)
    else:
        findings.put("pool_bytes", parts.values.get("pool_bytes"))
    before, after = findings.values.get("free_bytes"), parts.values.get("loaded_bytes")
    if isinstance(before, int) and isinstance(after, int):
        findings.put("weight_bytes", before - after, "first")
