"""Start-up logs in each engine's own format, written from recorded boots.

The lines are what the engines print; the figures, and what stopped a boot, come from the
record. Whatever a record lacks is left out of its log, as a cut paste would.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Lines = Iterator[str]

_RECORDS = Path(__file__).parent / "golden" / "engine_boots.jsonl"
_OUTCOMES = {
    "ok": "ok",
    "max_len_too_big": "request larger than pool",
    "no_blocks": "no room for pool",
    "oom_graph": "capture out of headroom",
    "oom_load": "weights do not fit",
    "oom_kv": "pool does not fit",
}
_REFUSED_AT_START = 133  # recorded as a failed load: the engine's check of free memory, before it


def records() -> list[Record]:
    """Return every recorded boot."""
    return [json.loads(line) for line in _RECORDS.read_text().splitlines()]


def outcome_of(record: Record) -> str:
    """Return the recorded outcome in the words of `boot_outcome`."""
    if record["id"] == _REFUSED_AT_START:
        return "free memory below utilization"
    return _OUTCOMES[record["outcome"]]


def log_of(record: Record) -> str:
    """Return the log that the record's engine would have printed."""
    writers = {
        "sglang": _sglang,
        "tensorrt-llm": _tensorrt,
        "llama.cpp": _llamacpp,
        "ik_llama.cpp": _llamacpp,
    }
    writer = writers.get(record["engine"], _vllm)
    return "\n".join(writer(record)) + "\n"


def _vllm(record: Record) -> Lines:
    is_v0 = "V0" in record["engine_version"] or "num_gpu_blocks" in record
    body = _vllm_v0(record) if is_v0 else _vllm_v1(record)
    for number, line in enumerate(body):
        yield _vllm_prefix(record, number, is_v0) + line


def _vllm_prefix(record: Record, number: int, is_v0: bool) -> str:
    clock = f"INFO 05-12 10:11:{number:02}"
    if is_v0:
        return f"{clock} worker.py:{100 + number}] "
    process = "Worker_TP0" if record.get("tensor_parallel", 1) > 1 else "EngineCore_0"
    return f"({process} pid={3000 + number}) {clock} [gpu_worker.py:{200 + number}] "


def _vllm_v0(record: Record) -> Lines:
    length = record.get("max_model_len", 2048)
    yield (
        f"Initializing an LLM engine (v0.6.4) with config: model='{record['model']}', "
        f"max_seq_len={length}, tensor_parallel_size={record.get('tensor_parallel', 1)}, "
        f"enforce_eager={record.get('enforce_eager', False)}, seed=0"
    )
    if record["outcome"] == "oom_load":
        yield from _failed(record, "load_model")
        return
    if "weights_gib" in record:
        yield f"Loading model weights took {record['weights_gib']:.4f} GB"
    yield from _vllm_v0_profile(record)
    if record["outcome"] == "no_blocks":
        yield (
            "ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine."
        )
        return
    if record["outcome"] == "oom_kv":
        yield from _failed(record, "allocate_gpu_cache")
        return
    if record["outcome"] == "max_len_too_big":
        yield (
            f"ValueError: The model's max seq len ({length}) is larger than the maximum number of "
            f"tokens that can be stored in KV cache ({record['kv_cache_tokens']}). Try increasing"
        )
        return
    yield "Capturing cudagraphs for decoding. This may lead to unexpected consequences"
    yield "If out-of-memory error occurs during cudagraph capture, consider decreasing"
    if record["outcome"] == "oom_graph":
        yield from _failed(record, "capture_model")
        return
    size = f", took {record['cuda_graph_gib']:.2f} GiB" if "cuda_graph_gib" in record else "."
    yield f"Graph capturing finished in 12 secs{size}"
    yield "Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)"


def _vllm_v0_profile(record: Record) -> Lines:
    if "kv_cache_gib" in record and "activation_peak_gib" in record:
        share = record.get("gpu_memory_utilization")
        total = record["gpu"].get("mem_gib")
        if share and total:
            yield (
                f"the current vLLM instance can use total_gpu_memory ({total:.2f}GiB) x "
                f"gpu_memory_utilization ({share:.2f}) = {share * total:.2f}GiB"
            )
        yield (
            f"model weights take {record['weights_gib']:.2f}GiB; non_torch_memory takes "
            f"{record.get('non_torch_gib', 0):.2f}GiB; PyTorch activation peak memory takes "
            f"{record['activation_peak_gib']:.2f}GiB; the rest of the memory reserved for KV "
            f"Cache is {record['kv_cache_gib']:.2f}GiB."
        )
    if "num_gpu_blocks" in record:
        yield f"# GPU blocks: {record['num_gpu_blocks']}, # CPU blocks: 2048"
    yield from _concurrency(record, thousands=False)


def _vllm_v1(record: Record) -> Lines:
    yield f"Initializing a V1 LLM engine (v0.11.0) with config: model='{record['model']}', seed=0"
    yield f"Starting to load model {record['model'].split()[0]}..."
    if record["id"] == _REFUSED_AT_START:
        gpu = record["gpu"]
        yield (
            f"ValueError: Free memory on device cuda:0 ({gpu['free_gib']}/{gpu['mem_gib']} GiB) on "
            f"startup is less than desired GPU memory utilization (0.9, 71.33 GiB). Decrease GPU"
        )
        return
    if record["outcome"] == "oom_load":
        yield from _failed(record, "load_model")
        return
    if "weights_gib" in record:
        yield f"Model loading took {record['weights_gib']:.4f} GiB and 12.345678 seconds"
    if "cuda_graph_estimate_gib" in record:
        yield f"Estimated CUDA graph memory: {record['cuda_graph_estimate_gib']:.2f} GiB total"
    if "kv_cache_gib" in record:
        yield f"Available KV cache memory: {record['kv_cache_gib']:.2f} GiB"
    yield from _vllm_v1_pool(record)


def _vllm_v1_pool(record: Record) -> Lines:
    outcome = record["outcome"]
    if outcome == "no_blocks":
        yield "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_u"
        return
    if outcome == "max_len_too_big":
        need = record.get("bytes_per_token_formula", 65536) * record.get("max_model_len", 131072)
        yield (
            "ValueError: To serve at least one request with the models's max seq len "
            f"({record.get('max_model_len', 131072)}), ({need / 2**30:.2f} GiB KV cache is needed, "
            "which is larger than the available KV cache memory "
            f"({record['kv_cache_gib']:.2f} GiB). Based on the available memory, the estimated "
            "maximum model length is 1024. Try increasing `gpu_memory_utilization`"
        )
        return
    if outcome == "oom_kv":
        yield from _failed(record, "initialize_kv_cache")
        return
    if "kv_cache_tokens" in record:
        yield f"GPU KV cache size: {record['kv_cache_tokens']:,} tokens"
    yield from _concurrency(record, thousands=True)
    if outcome == "oom_graph":
        yield "Capturing CUDA graph shapes:   0%|          | 0/67 [00:00<?, ?it/s]"
        yield from _failed(record, "capture_model")
        return
    if "cuda_graph_gib" in record:
        yield f"Graph capturing finished in 5 secs, took {record['cuda_graph_gib']:.2f} GiB"
    yield from _vllm_v1_usage(record)
    yield "Application startup complete."


def _vllm_v1_usage(record: Record) -> Lines:
    gpu = record.get("gpu", {})
    if "mem_gib" not in gpu or "free_gib" not in gpu or "activation_peak_gib" not in record:
        return
    share = record["gpu_memory_utilization"]
    held = (
        f"{record['consumed_gib']} GiB for consumed memory (weights + non-torch), "
        f"{record['activation_peak_gib']} GiB for peak activation"
        if "consumed_gib" in record
        else f"{record['weights_gib']} GiB for weight, {record['activation_peak_gib']} GiB for peak "
        f"activation, {record['non_torch_gib']} GiB for non-torch memory"
    )
    yield (
        f"Free memory on device ({gpu['free_gib']}/{gpu['mem_gib']} GiB) on startup. Desired GPU "
        f"memory utilization is ({share}, {share * gpu['mem_gib']:.2f} GiB). Actual usage is {held}, "
        f"and {record.get('cuda_graph_gib', 0)} GiB for CUDAGraph memory."
    )


def _concurrency(record: Record, thousands: bool) -> Lines:
    if "max_concurrency" in record and "max_model_len" in record:
        length = f"{record['max_model_len']:,}" if thousands else str(record["max_model_len"])
        yield f"Maximum concurrency for {length} tokens per request: {record['max_concurrency']:.2f}x"


def _failed(record: Record, function: str) -> Lines:
    total = record.get("gpu", {}).get("mem_gib", 24.0)
    yield "Traceback (most recent call last):"
    yield f'  File "/opt/engine/worker.py", line 520, in {function}'
    yield (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB. GPU 0 has a "
        f"total capacity of {total:.2f} GiB of which 121.00 MiB is free. Of the allocated memory"
    )


def _sglang(record: Record) -> Lines:
    clock = "[2025-03-14 09:20:11 TP0]"
    length = record.get("max_model_len", 32768)
    yield f"[2025-03-14 09:20:01] server_args=ServerArgs(model_path='{record['model'].split()[0]}')"
    yield f"{clock} Load weight begin. avail mem=78.81 GB"
    if record["outcome"] == "oom_load":
        yield from _failed(record, "load_model")
        return
    weights = record.get("weights_gib")
    used = f", mem usage={weights:.2f} GB." if weights else ""
    yield f"{clock} Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16{used}"
    if record["outcome"] == "no_blocks":
        yield "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
        return
    if "kv_cache_gib" in record:
        half = record["kv_cache_gib"] / 2
        tokens = record["kv_cache_tokens"]
        yield (
            f"{clock} KV Cache is allocated. #tokens: {tokens}, K size: {half:.3f} GB, "
            f"V size: {half:.3f} GB"
        )
    yield f"{clock} Memory pool end. avail mem=8.34 GB"
    yield f"{clock} Capture cuda graph begin. This can take up to several minutes."
    if record["outcome"] == "oom_graph":
        yield "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 20.00 MiB."
        return
    if "kv_cache_tokens" in record:
        yield (
            f"{clock} max_total_num_tokens={record['kv_cache_tokens']}, chunked_prefill_size=8192, "
            f"max_running_requests=2049, context_len={length}"
        )
    yield "The server is fired up and ready to roll!"


def _tensorrt(record: Record) -> Lines:
    tag = "[TensorRT-LLM][INFO]"
    yield f"{tag} Number of blocks in KV cache primary pool: {record['num_gpu_blocks']}"
    yield f"{tag} Number of tokens per block: {record['block_size']}."
    yield (
        f"{tag} [MemUsageChange] Allocated {record['kv_cache_gib']:.2f} GiB for max tokens in paged "
        f"KV cache ({record['kv_cache_tokens']})."
    )
    yield f"[02/14/2025-09:38:53] [TRT-LLM] [I] max_seq_len={record['max_model_len']}, max_num_r"
    yield "[02/14/2025-09:38:53] [TRT-LLM] [I] Engine loaded and ready to serve..."


def _llamacpp(record: Record) -> Lines:
    size = record["kv_cache_gib"] * 1024
    tokens = record["kv_cache_tokens"]
    yield "build: 4567 (0a1b2c3d) with cc (Ubuntu 11.4.0) for x86_64-linux-gnu"
    yield "load_tensors:        CUDA0 model buffer size = 15339.44 MiB"
    yield "load_tensors:   CPU_Mapped model buffer size =   682.03 MiB"
    yield f"llama_context: n_ctx         = {record['max_model_len']}"
    yield f"llama_kv_cache:      CUDA0 KV buffer size =  {size:.2f} MiB"
    yield f"llama_kv_cache: size = {size:.2f} MiB ( {tokens} cells,  61 layers,  1/1 seqs)"
    yield "main: server is listening on http://127.0.0.1:8080 - starting the main loop"
