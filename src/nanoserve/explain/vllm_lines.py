"""The lines of vLLM's start-up log that hold figures, from 0.1 to 0.3x.

Source: `worker.py`, `gpu_worker.py`, `gpu_model_runner.py`, `llm_engine.py`,
`executor_base.py` and `kv_cache_utils.py` over these versions. vLLM's "GB" are GiB.
"""

from nanoserve.explain.log_patterns import (
    NUMBER,
    QUOTED,
    Figure,
    count,
    gib,
    line_pattern,
    number,
    number_after,
    setting,
    share,
    sized,
)

_BLOCKS = Figure("num_blocks", count, "min")
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
    number_after("max_seq_len=", Figure("max_model_len", count)),
    number_after("max model len ", Figure("max_model_len", count)),
    *setting("max_model_len", Figure("max_model_len", count)),
    *setting("tensor_parallel_size", Figure("tensor_parallel", count)),
    *setting("max_num_seqs", Figure("max_num_seqs", count)),
    number_after("warming up sampler with", Figure("max_num_seqs", count)),
    *setting("max_num_batched_tokens", Figure("max_num_batched_tokens", count)),
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
    *setting("gpu_memory_utilization", Figure("utilization", share)),
    line_pattern(
        "CUDA graph memory profiling is enabled",
        rf"The current --gpu-memory-utilization={NUMBER} is equivalent",
        Figure("utilization", share),
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
    number_after("total_gpu_memory=", Figure("total_bytes", gib, "min")),
    number_after("non_torch_memory=", Figure("non_torch_bytes", gib, "max")),
    number_after("kv_cache_size=", Figure("pool_bytes", gib, "min")),
    number_after("Loading model weights took", Figure("weight_bytes", gib, "max")),
    number_after("Model loading took", Figure("weight_bytes", gib, "max")),
    number_after("Available KV cache memory:", Figure("pool_bytes", gib, "min")),
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
        number_after(f"# {name} blocks:", _BLOCKS)
        for name in ("GPU", "cuda", "CUDA", "rocm", "hip", "xpu", "npu", "hpu", "cpu")
    ),
    line_pattern("# device blocks", rf"blocks[:=]\s?{NUMBER}", _BLOCKS),
    number_after("num_gpu_blocks is:", _BLOCKS),
    number_after("Block size is set to", Figure("block_size", count)),
    number_after("block_size=", Figure("block_size", count)),
    number_after("KV cache size:", Figure("pool_tokens", count, "min")),
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
    number_after("Estimated CUDA graph memory:", Figure("graph_estimate_bytes", gib, "max")),
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
    number_after("num_cumulative_preemption=", Figure("num_preemptions", count, "max")),
    line_pattern(
        "total_num_cumulative_preemption",
        rf"preemption[=:]\s?{NUMBER}",
        Figure("num_preemptions", count, "max"),
    ),
)
