"""The lines of vLLM's start-up log that hold figures, from 0.1 to 0.3x.

Source: `worker.py`, `gpu_worker.py`, `gpu_model_runner.py`, `llm_engine.py`,
`executor_base.py` and `kv_cache_utils.py` over these versions. vLLM's "GB" are GiB.
"""

from nanoserve.plan.log_patterns import (
    NUMBER,
    QUOTED,
    Figure,
    count,
    gib,
    line_pattern,
    number,
    share,
    sized,
)

_BLOCKS = (Figure("num_blocks", count, "min"),)
_UTILIZATION = Figure("utilization", share)
VLLM_LINES = (
    line_pattern("vllm v", r"vllm v(\d{1,3}\.\d[\w.+-]{0,40})", Figure("version", str)),
    line_pattern(
        "API server version", r"API server version v?([\w.+-]{3,40})", Figure("version", str)
    ),
    line_pattern("LLM engine (v", r"LLM engine \(v([\w.+-]{3,40})\)", Figure("version", str)),
    line_pattern("model=", rf"model={QUOTED}", Figure("model", str, "first")),
    line_pattern(
        "Starting to load model",
        r"load model (\S{1,200}?)(?:\.\.\.|\s|$)",
        Figure("model", str, "first"),
    ),
    line_pattern("max_seq_len=", rf"max_seq_len={NUMBER}", Figure("max_model_len", count)),
    line_pattern("max model len ", rf"max model len {NUMBER}", Figure("max_model_len", count)),
    line_pattern(
        "max_model_len", rf"max_model_len['\"]?(?:=|:\s?){NUMBER}", Figure("max_model_len", count)
    ),
    line_pattern(
        "--max-model-len", rf"--max-model-len[= ]{NUMBER}(?![\w.])", Figure("max_model_len", count)
    ),
    line_pattern(
        "tensor_parallel_size",
        rf"tensor_parallel_size['\"]?(?:=|:\s?){NUMBER}",
        Figure("tensor_parallel", count),
    ),
    line_pattern(
        "tensor-parallel-size",
        rf"tensor-parallel-size[= ]{NUMBER}",
        Figure("tensor_parallel", count),
    ),
    line_pattern(
        "max_num_seqs", rf"max_num_seqs['\"]?(?:=|:\s?){NUMBER}", Figure("max_num_seqs", count)
    ),
    line_pattern("--max-num-seqs", rf"--max-num-seqs[= ]{NUMBER}", Figure("max_num_seqs", count)),
    line_pattern(
        "max_num_batched_tokens=",
        rf"max_num_batched_tokens={NUMBER}",
        Figure("max_num_batched_tokens", count),
    ),
    line_pattern(
        "kv_cache_dtype",
        r"kv_cache_dtype['\"]?(?:=|:\s?)['\"]?(\w{2,30})",
        Figure("kv_cache_dtype", str),
    ),
    line_pattern(
        "enforce_eager=",
        r"enforce_eager=(True|False),",
        Figure("is_eager", lambda text: text == "True"),
    ),
    line_pattern(
        "gpu_memory_utilization", rf"gpu_memory_utilization['\"]?(?:=|:\s?){NUMBER}", _UTILIZATION
    ),
    line_pattern(
        "--gpu-memory-utilization", rf"--gpu-memory-utilization[= ]{NUMBER}", _UTILIZATION
    ),
    line_pattern(
        "CUDA graph memory profiling is enabled",
        rf"The current --gpu-memory-utilization={NUMBER} is equivalent",
        _UTILIZATION,
    ),
    line_pattern(
        "total_gpu_memory (",
        rf"total_gpu_memory \({NUMBER}\s?GiB\)\s?x\s?gpu_memory_utilization \({NUMBER}\)\s?=\s?{NUMBER}",
        Figure("total_bytes", gib, "min"),
        Figure("utilization", share),
        Figure("budget_bytes", gib, "min"),
    ),
    line_pattern(
        "model weights take",
        rf"model weights take {NUMBER}\s?GiB;\s?non_torch_memory takes {NUMBER}\s?GiB;"
        rf"\s?PyTorch activation peak memory takes {NUMBER}\s?GiB;"
        rf"\s?the rest of the memory reserved for KV Cache is {NUMBER}\s?GiB",
        Figure("weight_bytes", gib, "max"),
        Figure("non_torch_bytes", gib, "max"),
        Figure("activation_bytes", gib, "max"),
        Figure("pool_bytes", gib, "min"),
    ),
    line_pattern(
        "total_gpu_memory=", rf"total_gpu_memory={NUMBER}", Figure("total_bytes", gib, "min")
    ),
    line_pattern(
        "non_torch_memory=", rf"non_torch_memory={NUMBER}", Figure("non_torch_bytes", gib, "max")
    ),
    line_pattern("kv_cache_size=", rf"kv_cache_size={NUMBER}", Figure("pool_bytes", gib, "min")),
    line_pattern(
        "Loading model weights took",
        rf"took {NUMBER}\s?Gi?B",
        Figure("weight_bytes", gib, "max"),
    ),
    line_pattern(
        "Model loading took", rf"took {NUMBER}\s?Gi?B", Figure("weight_bytes", gib, "max")
    ),
    line_pattern(
        "Available KV cache memory:", rf"memory:\s?{NUMBER}\s?GiB", Figure("pool_bytes", gib, "min")
    ),
    line_pattern(
        "Initial free memory:",
        rf"memory: {NUMBER} GiB; Requested memory: {NUMBER} \(util\), {NUMBER} GiB",
        Figure("free_bytes", gib, "min"),
        Figure("utilization", share),
        Figure("budget_bytes", gib, "min"),
    ),
    line_pattern(
        "Total non KV cache memory:",
        rf"torch peak memory increase: {NUMBER} ?GiB; non-torch forward increase memory: {NUMBER} ?GiB;"
        rf" weights memory: {NUMBER} ?GiB",
        Figure("activation_bytes", gib, "max"),
        Figure("non_torch_bytes", gib, "max"),
        Figure("weight_bytes", gib, "max"),
    ),
    line_pattern(
        "Initial free memory",
        rf"memory {NUMBER} GiB, reserved {NUMBER} GiB memory for KV Cache",
        Figure("free_bytes", gib, "min"),
        Figure("pool_bytes", gib, "min"),
    ),
    *(
        line_pattern(f"# {name} blocks:", rf"blocks:\s?{NUMBER}", *_BLOCKS)
        for name in ("GPU", "cuda", "CUDA", "rocm", "hip", "xpu", "npu", "hpu", "cpu")
    ),
    line_pattern("# device blocks", rf"blocks[:=]\s?{NUMBER}", *_BLOCKS),
    line_pattern("num_gpu_blocks is:", rf"is:\s?{NUMBER}", *_BLOCKS),
    line_pattern("Block size is set to", rf"set to {NUMBER}", Figure("block_size", count)),
    line_pattern("block_size=", rf"block_size={NUMBER}", Figure("block_size", count)),
    line_pattern(
        "KV cache size:", rf"cache size:\s?{NUMBER} tokens", Figure("pool_tokens", count, "min")
    ),
    line_pattern(
        "Maximum concurrency for",
        rf"for {NUMBER} tokens per request:\s?{NUMBER}x",
        Figure("max_model_len", count),
        Figure("max_concurrency", number, "min"),
    ),
    line_pattern(
        "Graph capturing finished in",
        rf"finished in [\d.]{{1,10}} secs?, took {NUMBER}\s?GiB",
        Figure("graph_bytes", gib, "max"),
    ),
    line_pattern(
        "Estimated CUDA graph memory:",
        rf"memory:\s?{NUMBER}\s?GiB",
        Figure("graph_estimate_bytes", gib, "max"),
    ),
    line_pattern(
        "CUDA graph pool memory:",
        rf"memory:\s?{NUMBER} GiB \(actual\), {NUMBER} GiB \(estimated\)",
        Figure("graph_bytes", gib, "max"),
        Figure("graph_estimate_bytes", gib, "max"),
    ),
    line_pattern(
        "Free memory on device",
        rf"device[^()]{{0,20}}\({NUMBER}/{NUMBER} GiB\)",
        Figure("free_bytes", gib, "min"),
        Figure("total_bytes", gib, "min"),
    ),
    line_pattern(
        "esired GPU memory utilization",
        rf"utilization (?:is )?\({NUMBER}, {NUMBER} GiB\)",
        Figure("utilization", share),
        Figure("budget_bytes", gib, "min"),
    ),
    line_pattern(
        "Actual usage is", rf"is {NUMBER} GiB for weight", Figure("weight_bytes", gib, "max")
    ),
    line_pattern(
        "Actual usage is", rf"is {NUMBER} GiB for consumed", Figure("consumed_bytes", gib, "max")
    ),
    line_pattern(
        "Actual usage is",
        rf" {NUMBER} GiB for peak activation",
        Figure("activation_bytes", gib, "max"),
    ),
    line_pattern(
        "Actual usage is", rf" {NUMBER} GiB for non-torch", Figure("non_torch_bytes", gib, "max")
    ),
    line_pattern(
        "Actual usage is",
        rf" {NUMBER} GiB for (?:CUDAG|NPU g)raph",
        Figure("graph_bytes", gib, "max"),
    ),
    line_pattern(
        "Current kv cache memory in use is",
        r"in use is ([\d.]{1,20} (?:GiB|bytes))",
        Figure("pool_bytes", sized, "min"),
    ),
    line_pattern(
        "num_cumulative_preemption=", rf"={NUMBER}", Figure("num_preemptions", count, "max")
    ),
    line_pattern(
        "total_num_cumulative_preemption",
        rf"preemption[=:]\s?{NUMBER}",
        Figure("num_preemptions", count, "max"),
    ),
)
