"""What Ollama's own engine prints of its memory: one line a device and kind of buffer.

Source: Ollama's `ml/device.go` and `ml/backend/ggml/ggml.go` since 0.11; its older runner prints
llama.cpp's lines instead.
"""

import re

from nanoserve.explain.log_patterns import positions, sized
from nanoserve.explain.logged_boot import Findings

SIGNS = (
    'msg="model weights"',
    'msg="compute graph"',
    "source=ggml.go",
    "source=device.go",
    "source=backend.go",
    "source=runner.go",
)
_FIELDS = {
    "model weights": "weight_bytes",
    "kv cache": "pool_bytes",
    "compute graph": "activation_bytes",
}
_BUFFER = re.compile(
    r"msg=\"(?P<kind>model weights|kv cache|compute graph)\" (?:device|buffer|backend)=(?P<device>\w{1,24})"
    r"(?: buffer_type=\w{1,24})? size=\"(?P<size>[\d.]{1,12} [KMG]?i?B)\""
)
_FREE = re.compile(
    r"msg=\"gpu memory\" id=(\S{1,60}) .{0,80}?\bavailable=\"([\d.]{1,12} [KMG]iB)\""
)
_HOST = "CPU"


def add_ollama_buffers(text: str, findings: Findings) -> None:
    """Add the sums over the GPUs, or over the host where there is no GPU, where nothing else has.

    A layout that did not fit is tried again with fewer layers: the last line of each counts.
    """
    found: dict[tuple[bool, str], dict[str, int]] = {}
    places: dict[str, int] = {}
    for position in positions(text, 'msg="'):
        match = _BUFFER.match(text, position)
        if match is not None:
            name = _FIELDS[match["kind"]]
            devices = found.setdefault((match["device"] == _HOST, name), {})
            devices[match["device"]] = sized(match["size"]) or 0
            places[name] = position
    on_host = not any(not is_host for is_host, _ in found)
    for (is_host, name), sizes in found.items():
        if is_host == on_host and name not in findings.values:
            findings.put(name, sum(sizes.values()), "first", places[name])
    free = {match[1]: match for match in _FREE.finditer(text)}  # once more for each model
    if free and found:
        total = sum(sized(match[2]) or 0 for match in free.values())
        findings.put("free_bytes", total, "first", min(one.start() for one in free.values()))
        findings.put("num_devices", len(free), "first")
