"""Files that a reader of logs may be given, made to any size: typical, odd and hostile ones.

`bench.log_reading` times them; the tests count the work that they take.
"""

import random
from collections.abc import Callable
from functools import partial

HEALTHY = """\
INFO 09-23 18:12:34 [gpu_worker.py:298] Available KV cache memory: 55.15 GiB
INFO 09-23 18:12:34 [kv_cache_utils.py:864] GPU KV cache size: 451,744 tokens
INFO:     Application startup complete.
"""
START = "INFO 09-23 [api_server.py:1896] vLLM API server version 0.10.2\n"
NEEDED = "To serve at least one request with the model max seq len (40960), (5.62 GiB KV cache is "

# Repeated to the size that is asked for.
UNITS: dict[str, bytes] = {
    "a healthy log": HEALTHY.encode(),
    "starts": START.encode(),
    "one line": b"Available KV cache memory: 1.00 GiB ",
    "one line of numbers": b"1.5 GiB, ",
    "one word": b"x",
    "digits": b"1,",
    "spaces": b" ",
    "zeros": b"\x00",
    "a program": bytes(range(256)),
    "blank lines": b"\n",
    "short lines": b"a\n",
    "lines of 80 columns": b"y" * 80 + b"\n",
    "lines of 99 columns": b"x" * 99 + b"\n",
    "nested quotes": b"> > > > > (EngineCore pid=1) INFO 05-12 10:11:12 [a.py:1] x\n",
    "a thousand quote marks a line": b">" * 1000 + b"\n",
    "open prefixes": b"(EngineCore ",
    "open brackets": b"(",
    "ranks": b"[2025-03-14 09:20:12 TP0] ",
    "ranks of torch": b"[rank0]: ",
    "escapes": b"\x1b[",
    "collectors' records": b'{"log":"INFO 05-12 10:11:12 [a.py:1] Running: 1 reqs\\n"}\n',
    "records that never end": b'{"log":"',
    "entities": b"&gt;&amp;&lt;&quot; ",
    "tags": b"<span class='a'>x</span><br>",
    "tags that never end": b"<span ",
    "written-out line ends": b"\\nINFO a",
    "fences": b"```\n",
    "tracebacks": b'Traceback (most recent call last):\n  File "/a/vllm/b.py", line 1, in x\n',
    "tracebacks in a line": b"Traceback (most recent call last): a.b.c.d.Erro: ",
    "words that almost raise": b"aErroraErrora.",
    "near refusals": NEEDED.encode(),
    "failed allocations": b"CUDA out of memory. Tried to allocate 1.00 GiB. ",
    "anchors of failures": b"CUDA out of memory ",
    "anchors of figures": b"Actual usage is model= Running: ",
    "buffers": b"CUDA0 KV buffer size = 1.0 MiB ",
    "retractions": b"Decode out of memory happened. #retracted_reqs: 3\n",
    "metrics": b'vllm:num_requests_running{engine="0",model_name="m"} 40.0\n',
    "preemptions": b'vllm:num_preemptions_total{engine="0"} 7.0\n',
    "labels": b'vllm:x{a="' + b'b",a="' * 30 + b'"} 1\n',
    "labels that never end": b'vllm:num_preemptions_total{engine="',
}


def repeated(unit: bytes, num_bytes: int) -> bytes:
    """Return as many whole copies as fit into `num_bytes`, one at least."""
    return unit * max(1, num_bytes // len(unit))


def random_bytes(num_bytes: int) -> bytes:
    """Return noise, the same every time."""
    return random.Random(0).randbytes(num_bytes)


def one_record(num_bytes: int) -> bytes:
    """Return a collector's record whose message is the whole file."""
    return b'{"log":"' + repeated(b"\\n a", num_bytes) + b'"}'


LOG_FILES: dict[str, Callable[[int], bytes]] = {
    "random bytes": random_bytes,
    "one record": one_record,
    **{name: partial(repeated, unit) for name, unit in UNITS.items()},
}
