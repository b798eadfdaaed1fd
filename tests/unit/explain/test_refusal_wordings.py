"""Every wording in which the engines refuse a boot for memory, over their versions.

Gathered from `raise` and `throw` statements: vLLM 0.2.7 to 0.33, SGLang 0.1.13 to 0.5.23,
TensorRT-LLM 0.5 to 1.2, llama.cpp of 2024 to 2026. Figures are filled in.
"""

import pytest

from nanoserve.explain.boot_log import read_boot_log
from nanoserve.explain.boot_outcome import name_outcome
from nanoserve.units import GIB, MIB

VLLM = "(EngineCore pid=1) ERROR 05-12 10:11:12 [core.py:1] "
SGLANG = "[2025-03-14 09:20:11 TP0] "
TENSORRT = "[TensorRT-LLM][ERROR] "
LLAMACPP = "llama_model_loader: loaded meta data with 40 key-value pairs\n"
LLAMACPP_READY = "main: server is listening on http://127.0.0.1:8080\nsrv update_slots: idle\n"

# prefix, words, outcome, bytes needed, bytes there
WORDINGS: tuple[tuple[str, str, str, int | None, int | None], ...] = (
    (VLLM, "No available memory for the cache blocks. Try", "no room for pool", None, None),
    (
        VLLM,
        "The model's max seq len (8192) is larger than the maximum number of tokens that can be "
        "stored in KV cache (4096). Try increasing",
        "request larger than pool",
        None,
        None,
    ),
    (
        VLLM,
        "To serve at least one request with the models's max seq len (8192), (4.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (1.00 GiB). Try increasing",
        "request larger than pool",
        4 * GIB,
        GIB,
    ),
    (
        VLLM,
        "To serve at least one request with the model's max seq len (8192), (4.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (1.0 GiB). Based on the "
        "available memory, the estimated maximum model length is 2048. Try increasing "
        "`gpu_memory_utilization` (which also controls CPU memory",
        "request larger than pool",
        4 * GIB,
        GIB,
    ),
    (
        VLLM,
        "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token",
        "no room for pool",
        None,
        None,
    ),
    (
        VLLM,
        "Free memory on device (10.00/24.00 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 21.60 GiB). Decrease",
        "free memory below utilization",
        round(21.6 * GIB),
        10 * GIB,
    ),
    (
        VLLM,
        "Free memory on device cuda:1 (10.0/24.0 GiB) on startup is less than the engine's budget "
        "after excluding external process's weights (0.92, 12.0 GiB). Decrease",
        "free memory below utilization",
        12 * GIB,
        10 * GIB,
    ),
    (
        VLLM,
        "Externally held weights on device cuda:0 (22.5/24.0 GiB) exceed the desired GPU memory "
        "utilization (0.92, 22.0 GiB). Increase",
        "free memory below utilization",
        None,
        22 * GIB,
    ),
    (
        VLLM,
        "Available memory on node 0 (10.0/64.0 GiB) on startup is less than desired CPU memory "
        "utilization (0.92, 58.0 GiB). On the CPU backend",
        "free memory below utilization",
        58 * GIB,
        10 * GIB,
    ),
    (
        VLLM,
        "Available memory on node 0 (3.0/64.0 GiB) on kv cache allocation is less than requested "
        "memory for kv (8.0 GiB). Decrease --kv-cache-memory-bytes",
        "no room for pool",
        8 * GIB,
        3 * GIB,
    ),
    (
        VLLM,
        "Available memory on node 1 (3.0/64.0 GiB) on kv cache allocation is less than requested "
        "memory for kv (8.0/60.0 GiB). Reduce CPU memory",
        "no room for pool",
        8 * GIB,
        3 * GIB,
    ),
    (
        VLLM,
        "The worker already uses 20.0 GiB (model weights and runtime), more than the 16.0 GiB of "
        "CPU memory reserved for it on node 0, leaving none for the KV cache.",
        "no room for pool",
        20 * GIB,
        16 * GIB,
    ),
    (
        VLLM,
        "frontend multimodal GPU decoding reserves 4.0 GiB (3.0 GiB raw-frame budget, 1.0 GiB "
        "decoder cache budget), but only 2.0 GiB is available for the KV cache. Reduce",
        "no room for pool",
        4 * GIB,
        2 * GIB,
    ),
    (
        VLLM,
        "max_num_seqs (256) exceeds available Mamba cache blocks (96). Each decode sequence",
        "too many requests for state",
        None,
        None,
    ),
    (
        VLLM,
        "Error in memory profiling. Initial free memory 20.0 GiB, current free memory 21.0 GiB. "
        "This happens when other processes",
        "memory changed while measuring",
        21 * GIB,
        20 * GIB,
    ),
    (
        VLLM,
        "Error in memory profiling. Initial used memory 123456, currently used memory 100000. This",
        "memory changed while measuring",
        None,
        None,
    ),
    (
        VLLM,
        "Error in memory profiling. This happens when the GPU memory was not properly cleaned up",
        "memory changed while measuring",
        None,
        None,
    ),
    (
        VLLM,
        "CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try",
        "capture out of headroom",
        None,
        None,
    ),
    (
        VLLM,
        "CUDA out of memory occurred when warming up pooler (task=embed) with 256 dummy requests.",
        "capture out of headroom",
        None,
        None,
    ),
    (
        VLLM,
        "The error occurred during profile run. This might be due to insufficient GPU memory.",
        "step does not fit",
        None,
        None,
    ),
    (
        VLLM,
        "The required memory size 20.0 GiB for model is higher than the total available device "
        "memory 16.0 GiB.",
        "weights do not fit",
        None,
        None,
    ),
    (
        VLLM,
        "Unable to load model, a likely reason is the model is too large for the current device's "
        "HBM memory. Consider",
        "weights do not fit",
        None,
        None,
    ),
    (
        VLLM,
        "Out of memory! No free blocks are available.",
        "out of memory while serving",
        None,
        None,
    ),
    (SGLANG, "Not enought memory. Please try to increase --mem", "no room for pool", None, None),
    (SGLANG, "Not enough memory. Please try to increase --mem", "no room for pool", None, None),
    (SGLANG, "Not enough memory; please try to increase --mem", "no room for pool", None, None),
    (SGLANG, "AssertionError: Memory pool size is too small", "no room for pool", None, None),
    (
        SGLANG,
        "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5. Raise "
        "--mem-fraction-static above 0.7 (minimum viable = 1 - available/pre = 0.66)",
        "no room for pool",
        None,
        None,
    ),
    (
        SGLANG,
        "SWA pool cap (4096 tokens, 1.00 GiB) leaves no room for the full KV pool within the "
        "available 0.50 GiB. Reduce --max-running-requests",
        "no room for pool",
        None,
        GIB // 2,
    ),
    (
        SGLANG,
        "Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
        "max_mamba_cache_size=-3 (total_rest_memory=-0.40 GB",
        "no room for pool",
        None,
        None,
    ),
    (
        SGLANG,
        "Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
        "max_mamba_cache_size=1",
        "no room for pool",
        None,
        None,
    ),
    (
        SGLANG,
        "max_mamba_cache_size is too small for this many requests",
        "too many requests for state",
        None,
        None,
    ),
    (
        SGLANG,
        "Not enough space for mamba cache, try to increase --mamba-full-memory-ratio",
        "too many requests for state",
        None,
        None,
    ),
    (
        SGLANG,
        "int8 mamba checkpoint pool needs ~4.00GB but only 1.00GB HBM is free. Lower",
        "pool does not fit",
        4 * GIB,
        GIB,
    ),
    (
        SGLANG,
        "The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "min_per_gpu_memory=10.2, local_gpu_memory=78.6, local_gpu_memory * 0.9=70.74",
        "memory changed while measuring",
        None,
        None,
    ),
    (
        SGLANG,
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 20.00 MiB. "
        "Possible solutions: 1. disable cuda graph",
        "capture out of headroom",
        20 * MIB,
        None,
    ),
    (
        SGLANG,
        "Out of memory. Please set a smaller number for `--max-running-requests`.",
        "out of memory while serving",
        None,
        None,
    ),
    (
        SGLANG,
        "alloc_req_slots runs out of memory. Please set a smaller number for",
        "out of memory while serving",
        None,
        None,
    ),
    (
        SGLANG,
        "Prefill out of memory. Try to lower your batch size. Try to allocate 8192 tokens.",
        "out of memory while serving",
        None,
        None,
    ),
    (
        SGLANG,
        "Decode out of memory. Try to lower your batch size. Try to allocate 64 tokens.",
        "out of memory while serving",
        None,
        None,
    ),
    (
        SGLANG,
        "Out of memory even after retracting all other requests in the decode batch",
        "out of memory while serving",
        None,
        None,
    ),
    (
        SGLANG,
        "Not enough host memory available. Requesting 90.0 GB but only have 60.0 GB free.",
        "host memory",
        None,
        None,
    ),
    (
        SGLANG,
        "Pinned host memory allocation of 90.0 GiB (1 bytes) returned a null pointer",
        "host memory",
        None,
        None,
    ),
    (
        SGLANG,
        "insufficient free VRAM for one top-k expert working set: free=1, object=2",
        "weights do not fit",
        None,
        None,
    ),
    (
        TENSORRT,
        "maxTokensInPagedKvCache must be large enough to process at least 1 sequence to completion",
        "request larger than pool",
        None,
        None,
    ),
    (
        TENSORRT,
        "maxTokensInPagedKvCache (128) must be large enough to process at least 1 sequence",
        "request larger than pool",
        None,
        None,
    ),
    (
        TENSORRT,
        "Insufficient memory for KV cache",
        "no room for pool",
        None,
        None,
    ),
    (
        TENSORRT,
        "Impossible to fit in any sequence in kvCache",
        "no room for pool",
        None,
        None,
    ),
    (
        TENSORRT,
        "CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (/app/tensorrt_llm/common/x.h:1)",
        "out of memory",
        None,
        None,
    ),
    (
        TENSORRT,
        "Error Code 1: Cuda Runtime (out of memory)",
        "out of memory",
        None,
        None,
    ),
    (
        TENSORRT,
        "Error Code 2: OutOfMemory (Requested size was 1073741824 bytes.)",
        "out of memory",
        GIB,
        None,
    ),
    (
        TENSORRT,
        "Requested amount of GPU memory (1073741824 bytes) could not be allocated.",
        "out of memory",
        GIB,
        None,
    ),
    (
        TENSORRT,
        "Executor creation failed due to insufficient GPU memory. The following component could not "
        "be created: Initial KV Cache (temporary for KV cache size estimation) Total GPU memory "
        "(GiB): 39.39 Free GPU memory before component creation attempt (GiB): 2.00",
        "step does not fit",
        None,
        2 * GIB,
    ),
    (
        TENSORRT,
        "Executor creation failed due to insufficient GPU memory. The following component could not "
        "be created: Draft model for speculative decoding Total GPU memory (GiB): 39.39 Free GPU "
        "memory before component creation attempt (GiB): 2.00",
        "weights do not fit",
        None,
        2 * GIB,
    ),
    (
        TENSORRT,
        "Executor creation failed due to insufficient GPU memory. The following component could not "
        "be created: Sampler Total GPU memory (GiB): 39.39 Free GPU memory before component "
        "creation attempt (GiB): 0.50",
        "step does not fit",
        None,
        GIB // 2,
    ),
    (
        LLAMACPP,
        "llama_model_load: error loading model: unable to allocate backend buffer",
        "weights do not fit",
        None,
        None,
    ),
    (
        LLAMACPP,
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1073741824\n"
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
        "weights do not fit",
        GIB,
        None,
    ),
    (
        LLAMACPP,
        "llama_kv_cache_init: failed to allocate buffer for kv cache",
        "pool does not fit",
        None,
        None,
    ),
    (
        LLAMACPP,
        "llama_new_context_with_model: llama_kv_cache_init() failed for self-attention cache",
        "pool does not fit",
        None,
        None,
    ),
    (
        LLAMACPP,
        "llama_memory_recurrent: failed to allocate buffer for rs cache",
        "pool does not fit",
        None,
        None,
    ),
    (
        LLAMACPP,
        "failed to allocate buffer for DSV4 compressor state",
        "pool does not fit",
        None,
        None,
    ),
    (
        LLAMACPP,
        "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 1073741824\n"
        "llama_new_context_with_model: failed to allocate compute buffers",
        "step does not fit",
        GIB,
        None,
    ),
    (
        LLAMACPP,
        "failed to initialize the context: failed to allocate compute tg buffers",
        "step does not fit",
        None,
        None,
    ),
    (
        LLAMACPP,
        "failed to reserve initial output buffer",
        "step does not fit",
        None,
        None,
    ),
    (
        LLAMACPP,
        "was unable to fit model into system memory by reducing context, abort",
        "host memory",
        None,
        None,
    ),
    (
        LLAMACPP,
        "ggml_metal_log_allocated_size\nerror: Insufficient Memory "
        "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "out of memory",
        None,
        None,
    ),
    (
        LLAMACPP + "load_tensors: loading model tensors, this can take a while... (mmap = true)\n",
        "ggml_vulkan: Device memory allocation of size 1073741824 failed.\n"
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "weights do not fit",
        None,
        None,
    ),
    (
        LLAMACPP_READY,
        "ggml_cuda_compute_forward: ADD failed\nCUDA error: out of memory",
        "out of memory while serving",
        None,
        None,
    ),
)
LOADING = "Starting to load model\n"
DEVICES = (  # a failed allocation as the libraries under the engines say it
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 23.65 GiB)",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB.",
    "RuntimeError: NPU out of memory. Tried to allocate 1.00 GiB (NPU 0; 60.97 GiB total capacity)",
    "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 1.00 GiB.",
    "RuntimeError: MPS backend out of memory (MPS allocated: 17.10 GiB, max allowed: 18.13 GiB).",
    "RuntimeError: MUSA out of memory. Tried to allocate 1.00 GiB.",
    "RuntimeError: CUDA error: out of memory",
    "RuntimeError: CUDA driver error: out of memory",
    "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
    "RuntimeError: HIP error: out of memory",
    "RuntimeError: Triton Error [CUDA]: out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'",
    "UR error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1073741824",
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.",
)
HOST = (
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    "OSError: [Errno 12] Cannot allocate memory",
    "MemoryError",
    "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory",
    "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error.",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "    Reason:       OOMKilled",
)


@pytest.mark.parametrize(("prefix", "words", "outcome", "need", "have"), WORDINGS)
def test_a_wording_is_known(
    prefix: str, words: str, outcome: str, need: int | None, have: int | None
) -> None:
    """What happened and the two figures that the line compares, where it has them."""
    boot = read_boot_log(f"{prefix}{words}\n")

    assert name_outcome(boot).kind == outcome
    assert boot.error is not None
    assert (boot.error.need_bytes, boot.error.have_bytes) == (need, have)


@pytest.mark.parametrize("words", DEVICES)
def test_a_failed_allocation_is_known_on_every_device(words: str) -> None:
    """PyTorch, CUDA, ROCm, Ascend, Intel, Metal, Gaudi and TPU have their own words."""
    assert (
        name_outcome(read_boot_log(f"{VLLM}{LOADING}{VLLM}{words}\n")).kind == "weights do not fit"
    )


@pytest.mark.parametrize("words", HOST)
def test_the_machines_own_memory_is_told_apart(words: str) -> None:
    """No setting of the card helps then."""
    assert name_outcome(read_boot_log(f"{VLLM}{LOADING}{words}\n")).kind == "host memory"


@pytest.mark.parametrize(
    "line",
    [
        "If out-of-memory error occurs during cudagraph capture, consider decreasing",
        "Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.62 -> 0.91",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1",
        "use '--enforce-eager' in the CLI. You can also reduce max_num_seqs to decrease memory usage",
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation",
    ],
)
def test_advice_and_a_full_pool_are_no_failure(line: str) -> None:
    """A server goes on after such lines."""
    assert read_boot_log(f"{SGLANG}{line}\n").error is None
    assert read_boot_log(f"{VLLM}{line}\n").error is None
