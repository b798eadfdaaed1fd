"""llama.cpp's start-up log (and ik_llama.cpp's, Ollama's and LM Studio's, which quote it).

Buffers are printed a device at a time; what lies in host memory is left out of the sums.

Source: `llama-context.cpp`, `llama-kv-cache*.cpp`, `llama-model.cpp` and `ggml-cuda.cu` of
2024 to 2026.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from nanoserve.explain.log_errors import BootMarks, ErrorPattern, StageMark
from nanoserve.explain.log_format import LogFormat
from nanoserve.explain.log_patterns import (
    NUMBER,
    Figure,
    count,
    line_pattern,
    mib,
    number,
    number_after,
    positions,
    sized,
)
from nanoserve.explain.logged_boot import Findings, LoggedError
from nanoserve.explain.ollama_lines import SIGNS as OLLAMA_SIGNS
from nanoserve.explain.ollama_lines import add_ollama_buffers
from nanoserve.units import MIB

_SIGNS = (
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
    "common_init_from_params",
    "llama_params_fit",
    "ggml_cuda",
    "ggml_metal",
    "ggml_vulkan",
    "ggml_gallocr_reserve_n",
    "ggml_backend_",
    "alloc_tensor_range:",
    "graph_reserve:",
    "llama_model_load",
    "llama_init",
    "llama_decode",
    "llm_load_print_meta:",
    "print_info:",
    "llama runner",
    "srv load_model",
    "srv update_slots:",
    "srv init:",
    "slot launch_slot_:",
    "slot print_timing:",
    "slot update_slots:",
    "main: exiting due to model loading error",
    "unable to allocate CUDA",
    "GGML_ASSERT",
    "memory.required.full=",
    "source=sched.go",
    "source=server.go",
    "requires more system memory",
    *OLLAMA_SIGNS,
)
_PREFIXES = re.compile(
    r"(?<![\d.])0\.00\.000\.000\s[IWED]|ollama|llama\.cpp|llama-server|llama-cpp|llamacpp"
)
_PATHS = ("ggml-cuda", "ggml/src/", "llama.cpp/", "ggml-metal", "ggml-vulkan", "llama_cpp/")
_READY = ("server is listening on", "HTTP server listening", "llama runner started in")
_HOST_DEVICES = ("cpu", "host")
_BEFORE_CHARS = 500  # between a failed allocation and the line that says what it was for

_OLLAMA = r"=\"?\[?([\d.]{1,12} [KMG]i?B)"  # what its runner estimates before llama.cpp starts

_LINES = (
    line_pattern("build: ", r"build: (\d{3,6})", Figure("version", str)),
    line_pattern("general.name", r"general\.name.{0,20}?= (.{1,80}?) llama", Figure("model", str)),
    number_after("n_ctx =", Figure("max_model_len", count)),
    number_after("n_seq_max =", Figure("max_num_seqs", count)),
    number_after("n_batch =", Figure("max_num_batched_tokens", count)),
    number_after("n_ubatch =", Figure("micro_batch_tokens", count)),
    line_pattern(
        "offloaded ",
        r"offloaded (\d{1,4})/(\d{1,4}) layers to GPU",
        Figure("num_device_layers", count),
        Figure("num_layers", count),
    ),
    line_pattern("type_k = ", r"type_k = '(\w{2,10})'", Figure("kv_cache_dtype", str)),
    number_after("kv_size =", Figure("pool_tokens", count, "max")),
    line_pattern("memory.weights.total=", _OLLAMA, Figure("weight_bytes", sized, "max")),
    line_pattern("memory.required.kv=", _OLLAMA, Figure("pool_bytes", sized, "max")),
    line_pattern("memory.graph.full=", _OLLAMA, Figure("activation_bytes", sized, "max")),
    line_pattern("memory.available=", _OLLAMA, Figure("free_bytes", sized, "max")),
    line_pattern(
        "projected to use",
        rf"use [\d.]{{1,12}} MiB of device memory vs. {NUMBER} MiB of free",
        Figure("free_bytes", mib, "first"),
    ),
    line_pattern("KV self size", rf"size = {NUMBER} MiB", Figure("pool_bytes", mib)),
    line_pattern(
        "llama_kv_cache",
        rf"size = [\d.]{{1,12}} MiB \( ?{NUMBER} cells",
        Figure("pool_tokens", count, "max"),  # of several caches, the one that holds everything
    ),
)
_BUFFER = re.compile(  # the first versions left `model` out
    r"(?<![\w.+-])(?!(?:in|out)put )(?P<device>[\w.+-]{2,24}) (?:(?P<kind>model|KV|RS|compute) )?buffer size = "
    r"(?P<mib>[\d.]{1,12}) MiB"
)
_BUFFER_FIELDS = {
    None: "weight_bytes",
    "model": "weight_bytes",
    "KV": "pool_bytes",
    "RS": "pool_bytes",  # recurrent state: what other layers hold of a request
    "compute": "activation_bytes",
}
_FREE = re.compile(r"- (\d{2,7}) MiB free")
_DEVICE = re.compile(  # of the newest; the host is listed beside the cards
    r"- {1,4}(?!CPU)\w{3,12} {0,9}: .{1,80}?\((\d{2,7}) MiB, (\d{2,7}) MiB free\)"
)
_TOTAL = re.compile(r"(?<!Total )VRAM: (\d{2,7}) MiB")
_NEEDED = re.compile(r"allocating ([\d.]{1,12}) MiB on device")
_ASKED_BYTES = re.compile(r"buffer of size (\d{6,15})\b")
_SYSTEM = re.compile(
    r"memory \((?P<need_bytes>[\d.]{1,12} [KMGT]iB)\) than is available "
    r"\((?P<have_bytes>[\d.]{1,12} [KMGT]iB)\)"
)
_SPECIFIC = (
    ErrorPattern("failed to allocate buffer for kv cache", "out of memory", None, "pool"),
    ErrorPattern("failed to allocate buffer for the KV cache", "out of memory", None, "pool"),
    ErrorPattern("failed to allocate compute", "out of memory", None, "profile"),
    ErrorPattern("failed to allocate buffer for rs cache", "out of memory", None, "pool"),
    ErrorPattern("failed to allocate buffer for DSV4", "out of memory", None, "pool"),
    ErrorPattern("llama_kv_cache_init() failed for self-attention", "out of memory", None, "pool"),
    ErrorPattern("ggml_gallocr_reserve_n: failed to allocate", "out of memory", None, "profile"),
    ErrorPattern("ggml_gallocr_reserve_n_impl: failed to", "out of memory", None, "profile"),
    ErrorPattern("failed to reserve initial output buffer", "out of memory", None, "profile"),
    ErrorPattern("failed to initialize the memory module", "out of memory", None, "pool"),
    ErrorPattern("error loading model: unable to allocate", "out of memory", None, "weights"),
    ErrorPattern("unable to fit model into system memory", "host memory", None, "weights"),
    ErrorPattern("model requires more system memory", "host memory", _SYSTEM, "weights"),
    ErrorPattern("Insufficient Memory (0000", "out of memory"),
    ErrorPattern("memory layout cannot be allocated", "out of memory"),
    ErrorPattern("unknown model architecture", "unsupported", None, "start"),
    ErrorPattern("error: invalid argument", "option", None, "start"),
)
_HINTS = (
    ErrorPattern("alloc_tensor_range: failed to allocate", "out of memory"),
    ErrorPattern("ggml_vulkan: Device memory allocation of size", "out of memory"),
    ErrorPattern("ErrorOutOfDeviceMemory", "out of memory"),
    ErrorPattern("error: failed to allocate buffer, size =", "out of memory"),
    ErrorPattern("failed to allocate Metal buffer of", "out of memory"),
    ErrorPattern("Bytes of memory on device", "out of memory"),
    ErrorPattern("not enough space in the buffer", "out of memory"),
    ErrorPattern("failed to create context with model", "unclear"),
    ErrorPattern("failed to create_context with model", "unclear"),
    ErrorPattern("llama runner process has terminated", "unclear"),
    ErrorPattern("error loading model:", "other error"),
    ErrorPattern("failed to load model", "unclear"),
    ErrorPattern("exiting due to model loading error", "unclear"),
)
_MALLOC = ErrorPattern("cudaMalloc failed: out of memory", "out of memory")
_RETRIES = (
    "allocation failed, retrying without pipeline parallelism",
    "model layout did not fit, applying backoff",
)
_STAGE_MARKS = (
    StageMark("load_tensors:", "weights"),
    StageMark("llama_context:", "pool"),
    StageMark("llama_new_context_with_model:", "pool"),
    StageMark("llama_init_from_model:", "pool"),
    StageMark("KV self size", "profile"),
    StageMark("cells,", "profile"),
    StageMark("srv update_slots:", "serving"),
    StageMark("slot launch_slot_:", "serving"),
    StageMark("slot update_slots:", "serving"),
    *(StageMark(anchor, "serving") for anchor in _READY),
)


def _add_buffers(text: str, findings: Findings) -> None:
    """Add the sums of buffers, and of what the cards had and had free."""
    for name, (num_bytes, position) in _buffers(text).items():
        findings.put(name, num_bytes, "last", position)
    add_ollama_buffers(text, findings)
    for name, anchor, regex in (
        ("free_bytes", "MiB free", _FREE),
        ("total_bytes", "VRAM:", _TOTAL),
    ):
        found = list(_around(text, anchor, regex))
        if found:
            findings.put(name, sum(size for size, _ in found) * MIB, "first", found[0][1])
            findings.put("num_devices", len(found), "first")
    devices = list(_DEVICE.finditer(text))
    for name, group in (("total_bytes", 1), ("free_bytes", 2)):
        if devices:
            size = sum(int(device[group]) for device in devices) * MIB
            findings.put(name, size, "first", devices[0].start())
            findings.put("num_devices", len(devices), "first")


def _buffers(text: str) -> dict[str, tuple[int, int]]:
    """Sum the buffers of each kind over the GPUs, or over the host where there is no GPU.

    Returns:
        Bytes, and where the first of them stands, by the field they belong to.
    """
    sizes: dict[tuple[bool, str], float] = {}
    places: dict[tuple[bool, str], int] = {}
    for position in positions(text, " buffer size ="):
        match = _BUFFER.search(text, max(0, position - 34), position + 40)
        size = None if match is None else number(match["mib"])
        if match is None or size is None:
            continue
        is_host = any(word in match["device"].casefold() for word in _HOST_DEVICES)
        key = (is_host, _BUFFER_FIELDS[match["kind"]])
        sizes[key] = sizes.get(key, 0.0) + size
        places.setdefault(key, position)
    on_host = not any(not is_host for is_host, _ in sizes)
    return {
        key[1]: (round(size * MIB), places[key]) for key, size in sizes.items() if key[0] == on_host
    }


def _around(text: str, anchor: str, regex: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the number an expression finds around each of an anchor's places, and the place."""
    for position in positions(text, anchor):
        match = regex.search(text, max(0, position - 12), position + len(anchor) + 14)
        if match is not None:
            yield int(match[1]), position


def _amend_error(text: str, error: LoggedError) -> LoggedError:
    return _add_stage(text, _add_need(text, error))


def _add_stage(text: str, error: LoggedError) -> LoggedError:
    """Add what memory was for: where a backend speaks first, the next lines say it."""
    if error.kind != "out of memory" or error.stage is not None or error.position is None:
        return error
    end = error.position + _BEFORE_CHARS
    found = ((text.find(one.anchor, error.position, end), one.stage) for one in _SPECIFIC)
    named = [(place, stage) for place, stage in found if place >= 0 and stage is not None]
    return replace(error, stage=min(named)[1]) if named else error


def _add_need(text: str, error: LoggedError) -> LoggedError:
    """Add what was asked for: it stands in the line before the one that says for what."""
    start = max(0, (error.position or 0) - _BEFORE_CHARS)
    end = (error.position or 0) + _BEFORE_CHARS
    if error.kind != "out of memory" or error.need_bytes is not None:
        return error
    if (asked := next(_NEEDED.finditer(text, start, end), None)) is not None:
        return replace(error, need_bytes=mib(asked[1]) or None)
    asked = _ASKED_BYTES.search(text, start, end)
    return error if asked is None else replace(error, need_bytes=int(asked[1]) or None)


LLAMACPP_LOG = LogFormat(
    engine="llama.cpp",
    signs=_SIGNS,
    start="llama_model_loader: loaded meta data",
    ready=_READY,
    lines=_LINES,
    marks=BootMarks(_SPECIFIC, _STAGE_MARKS, (), (_MALLOC, *_HINTS), _RETRIES),
    prefixes=_PREFIXES,
    paths=_PATHS,
    add_figures=_add_buffers,
    amend_error=_amend_error,
)
