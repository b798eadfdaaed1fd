"""llama.cpp's start-up log (and ik_llama.cpp's, Ollama's and LM Studio's, which quote it).

Buffers are printed a device at a time; what lies in host memory is left out of the sums.

Source: `llama-context.cpp`, `llama-kv-cache*.cpp`, `llama-model.cpp` and `ggml-cuda.cu` of
2024 to 2026.
"""

import re
from dataclasses import replace

from nanoserve.plan.log_errors import ErrorPattern, StageMark, find_error
from nanoserve.plan.log_patterns import (
    NUMBER,
    Figure,
    count,
    find_figures,
    line_pattern,
    mib,
    number,
    positions,
    sized,
)
from nanoserve.plan.logged_boot import Findings, LoggedBoot, LoggedError
from nanoserve.units import MIB

MARKS = (
    "llama_model_loader:",
    "llama_context:",
    "llama_new_context_with_model:",
    "llama_init_from_model:",
    "llama_kv_cache",
    "load_tensors:",
    "llm_load_tensors:",
    "model buffer size =",
    "KV buffer size =",
    "KV self size =",
    "compute buffer size =",
    "ggml_backend_cuda_buffer_type_alloc_buffer",
    "cudaMalloc failed",
    "llama-server",
    "memory.required.kv=",
)
START = "llama_model_loader: loaded meta data"
_READY = ("server is listening on", "HTTP server listening", "main: server is listening")
_HOST_DEVICES = ("cpu", "host")

_OLLAMA = r"=\"?\[?([\d.]{1,12} [KMG]i?B)"  # what its runner estimates before llama.cpp starts

_PATTERNS = (
    line_pattern("build: ", r"build: (\d{3,6})", Figure("version", str)),
    line_pattern("general.name", r"general\.name.{0,20}?= (.{1,80}?) llama", Figure("model", str)),
    line_pattern("n_ctx = ", rf"n_ctx = {NUMBER}", Figure("max_model_len", count)),
    line_pattern("n_seq_max = ", rf"n_seq_max = {NUMBER}", Figure("max_num_seqs", count)),
    line_pattern("n_batch = ", rf"n_batch = {NUMBER}", Figure("max_num_batched_tokens", count)),
    line_pattern("type_k = ", r"type_k = '(\w{2,10})'", Figure("kv_cache_dtype", str)),
    line_pattern("kv_size = ", rf"kv_size = {NUMBER}", Figure("pool_tokens", count, "max")),
    line_pattern("memory.weights.total=", _OLLAMA, Figure("weight_bytes", sized, "max")),
    line_pattern("memory.required.kv=", _OLLAMA, Figure("pool_bytes", sized, "max")),
    line_pattern("memory.graph.full=", _OLLAMA, Figure("activation_bytes", sized, "max")),
    line_pattern("memory.available=", _OLLAMA, Figure("free_bytes", sized, "max")),
    line_pattern("KV self size", rf"size = {NUMBER} MiB", Figure("pool_bytes", mib)),
    line_pattern(
        "llama_kv_cache",
        rf"size = [\d.]{{1,12}} MiB \( ?{NUMBER} cells",
        Figure("pool_tokens", count, "max"),  # of several caches, the one that holds everything
    ),
)
_BUFFER = re.compile(
    r"(?P<device>[\w.+-]{2,24}) (?P<kind>model|KV|RS|compute) buffer size = "
    r"(?P<mib>[\d.]{1,12}) MiB"
)
_BUFFER_FIELDS = {
    "model": "weight_bytes",
    "KV": "pool_bytes",
    "RS": "pool_bytes",  # recurrent state: what other layers hold of a request
    "compute": "activation_bytes",
}
_FREE = re.compile(r"- (\d{2,7}) MiB free")
_NEEDED = re.compile(r"allocating ([\d.]{1,12}) MiB on device")
_OUT_OF_MEMORY = (
    ErrorPattern("failed to allocate buffer for kv cache", "out of memory", None, "pool"),
    ErrorPattern("failed to allocate buffer for the KV cache", "out of memory", None, "pool"),
    ErrorPattern("failed to allocate compute", "out of memory", None, "profile"),
    ErrorPattern("error loading model: unable to allocate", "out of memory", None, "weights"),
    ErrorPattern("cudaMalloc failed: out of memory", "out of memory"),
)
_REFUSALS = (
    ErrorPattern("unknown model architecture", "unsupported", None, "start"),
    ErrorPattern("error: invalid argument", "option", None, "start"),
)
_STAGE_MARKS = (
    StageMark("load_tensors:", "weights"),
    StageMark("llama_context:", "pool"),
    StageMark("llama_new_context_with_model:", "pool"),
    StageMark("llama_init_from_model:", "pool"),
    StageMark("KV self size", "profile"),
    StageMark("cells,", "profile"),
    *(StageMark(anchor, "serving") for anchor in _READY),
)


def read_llamacpp(text: str) -> LoggedBoot:
    """Read one boot of llama.cpp. Its figures are sums over all GPUs.

    Args:
        text: As `log_text.plain_log` returns it.
    """
    findings = Findings()
    find_figures(text, _PATTERNS, findings)
    for name, num_bytes in _buffers(text).items():
        findings.put(name, num_bytes)
    free_mib = [int(match) for match in _windows(text, "MiB free", _FREE)]
    findings.put("free_bytes", sum(free_mib) * MIB or None)
    is_ready = any(anchor in text for anchor in _READY)
    boot = LoggedBoot(engine="llama.cpp", is_ready=is_ready, error=_error(text))
    return findings.complete(boot)


def _buffers(text: str) -> dict[str, int]:
    """Sum the buffers of each kind over the GPUs, or over the host where there is no GPU."""
    sizes: dict[tuple[bool, str], float] = {}
    for position in positions(text, " buffer size ="):
        match = _BUFFER.search(text, max(0, position - 34), position + 40)
        size = None if match is None else number(match["mib"])
        if match is None or size is None:
            continue
        is_host = any(word in match["device"].casefold() for word in _HOST_DEVICES)
        key = (is_host, _BUFFER_FIELDS[match["kind"]])
        sizes[key] = sizes.get(key, 0.0) + size
    on_host = not any(not is_host for is_host, _ in sizes)
    return {
        name: round(size * MIB) for (is_host, name), size in sizes.items() if is_host == on_host
    }


def _windows(text: str, anchor: str, regex: re.Pattern[str]) -> list[str]:
    """Return the first group of an expression that ends at the anchor, wherever that stands."""
    found = (
        regex.search(text, max(0, position - 12), position + len(anchor))
        for position in positions(text, anchor)
    )
    return [match[1] for match in found if match is not None]


def _error(text: str) -> LoggedError | None:
    """Return what stopped it: the line after a failed allocation says what it was for."""
    for pattern in _OUT_OF_MEMORY:
        if pattern.anchor in text:
            needed = _NEEDED.search(text, max(0, text.find("allocating ")))
            error = find_error(text, (pattern,), _STAGE_MARKS, (), {})
            return error and replace(error, need_bytes=mib(needed[1]) if needed else None)
    return find_error(text, _REFUSALS, _STAGE_MARKS, (), {})
