"""Shortened lines of public issues on engines, as their readers met them, and what they mean.

None was at hand when the readers were written. Only the engines' own lines are here, re-typed.
"""

from typing import NamedTuple


class Found(NamedTuple):
    """One paste: its text, whose it is, what became of the boot, its quote and first change."""

    text: str
    engine: str
    outcome: str
    quote: str = ""
    fix: str = ""


_FREE = (
    "ValueError: Free memory on device {} on startup is less than desired GPU memory utilization {}. "
    "Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
)
_SGL_PY = "/sgl-workspace/sglang/python/sglang/srt"
_CORE = "(EngineCore_DP0 pid=1094) ERROR 10-25 13:08:43 [core.py:708] "

FOUND = {
    "a trainer's ray worker with a collector's stamps": Found(
        "2024-06-28T06:11:52.685Z (LLMRayActor pid=2077) INFO 06-28 06:11:45 "
        "distributed_gpu_executor.py:45] # GPU blocks: 378, # CPU blocks: 1638\n"
        "2024-06-28T06:11:52.686Z (LLMRayActor pid=2077) ERROR 06-28 06:11:45 worker_base.py:145] "
        "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens "
        "that can be stored in KV cache (6048). Try increasing `gpu_memory_utilization` or "
        "decreasing `max_model_len` when initializing the engine.\n",
        "vllm",
        "request larger than pool",
        "(8192)",
        "--max-model-len 6048",
    ),
    "a terminal's box around the lines": Found(
        "│ INFO 03-21 20:15:45 [worker.py:267] the current vLLM instance can use total_gpu_memory "
        "(79.19GiB) x gpu_memory_utilization (0.90) = 71.27GiB      │\n"
        "│ INFO 03-21 20:15:45 [worker.py:267] model weights take 12.55GiB; non_torch_memory takes "
        "0.16GiB; PyTorch activation peak memory takes 2.38GiB; the rest of the memory reserved for "
        "KV Cache is 56.18GiB.   │\n"
        "│ INFO 03-21 20:15:46 [executor_base.py:111] # cuda blocks: 7191, # CPU blocks: 512   │\n",
        "vllm",
        "ok",
    ),
    "the first V1's words": Found(
        "INFO 01-30 03:18:12 gpu_model_runner.py:848] Loading model weights took 67.7229 GB\n"
        "INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381\n"
        "INFO 01-30 03:19:14 kv_cache_utils.py:398] Maximum concurrency for 2048 tokens per "
        "request: 10.79x\n",
        "vllm",
        "ok",
    ),
    "free memory of a card of 4 GiB": Found(
        _CORE + _FREE.format("(3.22/4.0 GiB)", "(0.9, 3.6 GiB)"),
        "vllm",
        "free memory below utilization",
        "(3.22/4.0 GiB)",
        "stop other processes",
    ),
    "free memory of an XPU": Found(
        _CORE + _FREE.format("xpu:0 (0.22/30.3 GiB)", "(0.7, 21.21 GiB)"),
        "vllm",
        "free memory below utilization",
        "xpu:0",
        "stop other processes",
    ),
    "a co-tenant that left while the profile ran": Found(
        "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current free "
        "memory 90.17 GiB. This happens when other processes sharing the same container release GPU "
        "memory while vLLM is profiling during initialization.\n",
        "vllm",
        "memory changed while measuring",
        "82.94 GiB",
    ),
    "states, the short words": Found(
        "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (969).\n",
        "vllm",
        "too many requests for state",
        "(969)",
        "--max-num-seqs 969",
    ),
    "states, through the worker's failure": Found(
        "(EngineCore_DP0 pid=78) RuntimeError: Worker failed with error 'max_num_seqs (1024) exceeds "
        "available Mamba cache blocks (600). Each decode sequence requires one Mamba cache block, so "
        "CUDA graph capture cannot proceed. Please lower max_num_seqs to at most 600 or increase "
        "gpu_memory_utilization.', please check the stack trace above for the root cause\n",
        "vllm",
        "too many requests for state",
        "(600)",
        "--max-num-seqs 600",
    ),
    "stages of unequal cards": Found(
        "(EngineCore_DP0 pid=1094) ValueError: To serve at least one request with the models's max "
        "seq len (262144), (24.0 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (3.18 GiB). Based on the available memory, the estimated maximum model length is "
        "34736. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine.\n",
        "vllm",
        "request larger than pool",
        "24.0 GiB",
        "--max-model-len 34736",
    ),
    "the engine's own raise before what was raised": Found(
        f'{_CORE}    raise ValueError("No available memory for the cache blocks. "\n'
        f'{_CORE}                     "Try increasing `gpu_memory_utilization` when "\n'
        f"{_CORE}ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.\n",
        "vllm",
        "no room for pool",
        "ValueError: No available",
    ),
    "a first execution without the profile's functions": Found(
        "INFO 04-17 06:55:15 model_runner.py:1071] Loading model weights took 13.9475 GB\n"
        "INFO 04-17 06:55:15 model_runner_base.py:120] Writing input of failed execution to "
        "/tmp/err_execute_model_input.pkl...\n"
        "Traceback (most recent call last):\n"
        '  File "/usr/local/lib/python3.12/site-packages/vllm/worker/model_runner_base.py", line 116, '
        "in _wrapper\n"
        '  File "/usr/local/lib/python3.12/site-packages/vllm/worker/model_runner.py", line 1654, in '
        "execute_model\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 15.77 GiB of which 1.08 GiB is free.\n",
        "vllm",
        "step does not fit",
        "CUDA out of memory",
    ),
    "a card that another server filled, in 0.6.4": Found(
        "vllm-1  | INFO 11-18 18:07:40 model_runner.py:1077] Loading model weights took 0.9276 GB\n"
        "vllm-1  | INFO 11-18 18:07:43 worker.py:232] Memory profiling results: "
        "total_gpu_memory=79.35GiB initial_memory_usage=72.07GiB peak_torch_memory=2.16GiB "
        "memory_usage_post_profile=72.15GiB non_torch_memory=71.20GiB kv_cache_size=-1.95GiB "
        "gpu_memory_utilization=0.90\n"
        "vllm-1  | INFO 11-18 18:07:43 gpu_executor.py:113] # GPU blocks: 0, # CPU blocks: 21845\n"
        "vllm-1  | ERROR 11-18 18:07:43 engine.py:366] No available memory for the cache blocks. Try "
        "increasing `gpu_memory_utilization` when initializing the engine.\n",
        "vllm",
        "no room for pool",
        "",
        "stop other processes",
    ),
    "SGLang's capture on a full card": Found(
        f'  File "{_SGL_PY}/model_executor/cuda_graph_runner.py", line 269, in __init__\n'
        "    raise Exception(\n"
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB. GPU "
        "7 has a total capacity of 95.00 GiB of which 385.31 MiB is free. Process 2277 has 94.62 GiB "
        "memory in use. Of the allocated memory 89.77 GiB is allocated by PyTorch, with 153.88 MiB "
        "allocated in private pools (e.g., CUDA Graphs), and 1.24 GiB is reserved by PyTorch but "
        "unallocated.\n",
        "sglang",
        "capture out of headroom",
        "448.00 MiB",
        "--disable-cuda-graph",
    ),
    "SGLang's capture that no memory stopped": Found(
        "[2024-10-22 06:31:49 TP0] Memory pool end. avail mem=8.38 GB\n"
        "[2024-10-22 06:31:49 TP0] Capture cuda graph begin. This can take up to several minutes.\n"
        "Exception: Capture cuda graph failed: unsupported head_dim 96\n"
        "Possible solutions:\n"
        "1. disable cuda graph by --disable-cuda-graph\n"
        "2. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n",
        "sglang",
        "other error",
        "head_dim 96",
    ),
    "SGLang's pools of full and sliding layers": Found(
        "[2026-01-31 13:50:39 TP2] Use sliding window memory pool. full_layer_tokens=375360, "
        "swa_layer_tokens=300288\n"
        "[2026-01-31 13:50:39 TP1] KV Cache is allocated. #tokens: 300288, K size: 8.38 GB, V size: "
        "5.59 GB\n"
        "[2026-01-31 13:50:39 TP1] KV Cache is allocated. #tokens: 375360, K size: 1.21 GB, V size: "
        "0.81 GB\n",
        "sglang",
        "ok",
    ),
    "SGLang's refusal of a prefill": Found(
        "Prefill out of memory. Try to lower your batch size.\nTry to allocate 4096 tokens.\n",
        "sglang",
        "out of memory while serving",
        "Prefill out of memory",
    ),
    "TensorRT-LLM's first words": Found(
        "[TensorRT-LLM][INFO] Allocate 69524783104 bytes for k/v cache. \n"
        "[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.\n",
        "tensorrt-llm",
        "ok",
    ),
    "TensorRT-LLM's ranks on one card": Found(
        "[09/17/2025-21:24:18] [TRT-LLM] [RANK 7] [E] Error executing load_single_module with args "
        "('model.layers.9.mlp.gate_up_proj', Linear()): CUDA out of memory. Tried to allocate 40.00 "
        "MiB. GPU 0 has a total capacity of 22.07 GiB of which 40.62 MiB is free. Process 451 has "
        "1.16 GiB memory in use. Process 450 has 7.69 GiB memory in use. Process 456 has 1.08 GiB "
        "memory in use. Of the allocated memory 6.80 GiB is allocated by PyTorch, and 20.00 MiB is "
        "reserved by PyTorch but unallocated.\n",
        "tensorrt-llm",
        "others hold the memory",
        "40.00 MiB",
    ),
    "llama.cpp's copies of a compute buffer": Found(
        "llama_kv_cache_init:      CUDA0 KV buffer size =   379.23 MiB\n"
        "llama_new_context_with_model:  CUDA_Host  output buffer size =     0.99 MiB\n"
        "llama_new_context_with_model: pipeline parallelism enabled (n_copies=4)\n"
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 279356.51 MiB on device 0: "
        "cudaMalloc failed: out of memory\n"
        "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 292926534144\n"
        "llama_new_context_with_model: failed to allocate compute buffers\n",
        "llama.cpp",
        "step does not fit",
    ),
    "llama.cpp, which tried again and went on": Found(
        "1.06.520.077 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 51748.72 MiB on "
        "device 1: cudaMalloc failed: out of memory\n"
        "1.06.520.084 E ggml_gallocr_reserve_n_impl: failed to allocate CUDA1 buffer of size "
        "54262464512\n"
        "1.06.520.086 E graph_reserve: failed to allocate compute buffers\n"
        "1.06.520.107 W sched_reserve: compute buffer allocation failed, retrying without pipeline "
        "parallelism\n"
        "1.07.304.130 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 50176\n",
        "llama.cpp",
        "unknown",
    ),
    "llama.cpp, which tried again in vain": Found(
        "ggml_gallocr_reserve_n_impl: failed to allocate Vulkan1 buffer of size 455917568\n"
        "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
        "ggml_vulkan: Device memory allocation of size 416022528 failed.\n"
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory\n"
        "ggml_gallocr_reserve_n_impl: failed to allocate Vulkan1 buffer of size 416022528\n"
        "graph_reserve: failed to allocate compute buffers\n",
        "llama.cpp",
        "step does not fit",
    ),
    "TensorRT-LLM's list of what was made before": Found(
        "[07/08/2025-19:47:15] [TRT-LLM] [RANK 1] [E] Failed to initialize executor on rank 1: "
        "Executor creation failed due to insufficient GPU memory.\n\n"
        "The following component could not be created: Additional executor resources\n"
        "Total GPU memory (GiB): 95.00\n"
        "Free GPU memory before component creation attempt (GiB): 16.95\n\n"
        "Previously created components and free GPU memory before/after creation (GiB):\n"
        "Model: 94.30 / 47.83\n"
        "Sampler: 47.83 / 47.83\n",
        "tensorrt-llm",
        "step does not fit",
        "insufficient GPU memory",
    ),
    "TensorRT-LLM with fewer cards than asked for": Found(
        '  File "/usr/local/lib/python3.10/dist-packages/tensorrt_llm/llmapi/llm.py", line 130, in '
        "__init__\n"
        "RuntimeError: Only 8 GPUs are available, but 16 are required.\n",
        "tensorrt-llm",
        "option",
        "16 are required",
    ),
    "a HIP allocation smaller than what was free": Found(
        "2026-05-08 11:47:02.250 [Error] (Process) (EngineCore pid=2651) EngineCore failed to start.\n"
        "2026-05-08 11:47:02.257 [Error] (Process) (EngineCore pid=2651) torch.OutOfMemoryError: HIP "
        "out of memory. Tried to allocate 12.95 GiB. GPU 0 has a total capacity of 127.00 GiB of "
        "which 18.55 GiB is free. Of the allocated memory 99.37 GiB is allocated by PyTorch, and "
        "121.80 MiB is reserved by PyTorch but unallocated.\n",
        "vllm",
        "out of memory",
        "12.95 GiB",
    ),
    "SGLang's refusal of a share under the weights": Found(
        "Load weight end. quant=fp8, fmt=e4m3, avail mem=12.25 GB, mem usage=125.65 GB.\n"
        "ValueError: Loaded weights leave no GPU memory for the KV cache under "
        "--mem-fraction-static=0.88.\n",
        "sglang",
        "no room for pool",
        "0.88",
        "--mem-fraction-static 0.92",
    ),
}
