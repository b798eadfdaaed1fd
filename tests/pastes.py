"""Pieces of start-up logs as people paste them, each with what it has to be read as.

The lines are in each engine's format; the figures come from public issues. A piece lacks what
a paste lacks: the banner, the version, the end, or everything but the traceback's last lines.
"""

from typing import NamedTuple

from tests.found_pastes import FOUND


class Paste(NamedTuple):
    """One paste.

    Attributes:
        text: As pasted.
        engine: Whose lines they are.
        outcome: What became of the boot.
        quote: What the quoted line holds; empty where none is quoted.
        fix: What one of the changes holds; empty where the figures allow none.
    """

    text: str
    engine: str
    outcome: str
    quote: str = ""
    fix: str = ""


def _frames(prefix: str, root: str, *frames: str) -> str:
    """Return a traceback's frames: `file.py:function` each."""
    lines = []
    for number, frame in enumerate(frames):
        file, function = frame.rsplit(":", 1)
        lines.append(f'{prefix}  File "{root}/{file}", line {number * 37 + 112}, in {function}')
        lines.append(f"{prefix}    return {function}(*args, **kwargs)")
    return "\n".join(lines) + "\n"


_SITE = "/usr/local/lib/python3.12/dist-packages"
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 0 has a total "
    "capacity of 23.52 GiB of which 391.50 MiB is free. Process 2104 has 23.13 GiB memory in use. "
    "Of the allocated memory 22.62 GiB is allocated by PyTorch, and 66.41 MiB is reserved by "
    "PyTorch but unallocated.\n"
)
_CORE = "(EngineCore_DP0 pid=4242) ERROR 11-02 12:00:31 [core.py:708] "
_TOO_LONG = (
    "To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (4.52 GiB). Based on the available "
    "memory, the estimated maximum model length is 37024. Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n"
)
_STORED = (
    "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that "
    "can be stored in KV cache (18752). Try increasing `gpu_memory_utilization` or decreasing "
    "`max_model_len` when initializing the engine.\n"
)

VLLM = {
    "tail of a core's traceback": Paste(
        _frames(
            _CORE,
            _SITE,
            "vllm/v1/engine/core.py:_initialize_kv_caches",
            "vllm/v1/core/kv_cache_utils.py:check_enough_kv_cache_memory",
        )
        + f"{_CORE}ValueError: {_TOO_LONG}",
        "vllm",
        "request larger than pool",
        "To serve at least one",
        "--max-model-len 37024",
    ),
    "the exception alone": Paste(
        f"ValueError: {_TOO_LONG}", "vllm", "request larger than pool", "larger", "--max-model-len"
    ),
    "first version's refusal alone": Paste(
        _STORED, "vllm", "request larger than pool", "stored in KV", "--max-model-len 18752"
    ),
    "rank of the first workers, weights": Paste(
        _frames(
            "(VllmWorkerProcess pid=882) ERROR 08-14 03:22:10 multiproc_worker_utils.py:226] ",
            _SITE,
            "vllm/worker/worker.py:load_model",
            "vllm/model_executor/model_loader/loader.py:load_model",
        )
        + f"(VllmWorkerProcess pid=882) ERROR 08-14 03:22:10 multiproc_worker_utils.py:226] {_OOM}",
        "vllm",
        "weights do not fit",
        "CUDA out of memory",
    ),
    "middle of a worker's lines": Paste(
        "(VllmWorker rank=1 pid=771) INFO 05-09 07:14:55 [gpu_model_runner.py:1347] Model loading "
        "took 8.0541 GiB and 9.61 seconds\n"
        "(VllmWorker rank=0 pid=770) INFO 05-09 07:14:56 [gpu_model_runner.py:1347] Model loading "
        "took 8.0541 GiB and 10.02 seconds\n"
        "(VllmWorker rank=1 pid=771) INFO 05-09 07:15:20 [monitor.py:33] torch.compile takes 17 s\n",
        "vllm",
        "unknown",
    ),
    "middle with the pool": Paste(
        "(EngineCore_DP0 pid=9) INFO 11-02 12:00:00 [gpu_worker.py:298] Available KV cache memory: "
        "55.15 GiB\n(EngineCore_DP0 pid=9) INFO 11-02 12:00:00 [kv_cache_utils.py:864] GPU KV "
        "cache size: 451,744 tokens\n",
        "vllm",
        "ok",
    ),
    "one line in the newest words": Paste(
        "(EngineCore pid=9) INFO 08-02 12:00:00 [v1/core/kv_cache_utils.py:1147] GPU KV cache "
        "size: 93,184 tokens, Maximum concurrency for 131,072 tokens per request: 0.71x\n",
        "vllm",
        "request larger than pool",
    ),
    "profile in the first engine": Paste(
        _frames(
            "",
            "/opt/conda/lib/python3.10/site-packages",
            "vllm/executor/gpu_executor.py:determine_num_available_blocks",
            "vllm/worker/worker.py:determine_num_available_blocks",
            "vllm/worker/model_runner.py:profile_run",
            "vllm/worker/model_runner.py:execute_model",
            "vllm/model_executor/models/llama.py:forward",
        )
        + _OOM,
        "vllm",
        "step does not fit",
        "CUDA out of memory",
    ),
    "sampler's warm-up in the profile": Paste(
        _frames(
            _CORE,
            _SITE,
            "vllm/v1/worker/gpu_worker.py:determine_available_memory",
            "vllm/v1/worker/gpu_model_runner.py:profile_run",
            "vllm/v1/worker/gpu_model_runner.py:_dummy_sampler_run",
        )
        + f"{_CORE}RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
        "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when "
        "initializing the engine.\n",
        "vllm",
        "step does not fit",
        "warming up sampler",
    ),
    "capture's traceback": Paste(
        _frames(
            "(Worker_TP0 pid=31) ERROR 01-08 11:19:33 [multiproc_executor.py:824] ",
            _SITE,
            "vllm/v1/worker/gpu_worker.py:compile_or_warm_up_model",
            "vllm/v1/worker/gpu_model_runner.py:capture_model",
        )
        + f"(Worker_TP0 pid=31) ERROR 01-08 11:19:33 [multiproc_executor.py:824] {_OOM}",
        "vllm",
        "capture out of headroom",
        "CUDA out of memory",
        "--enforce-eager",
    ),
    "serving's traceback": Paste(
        _frames(
            _CORE,
            _SITE,
            "vllm/v1/engine/core.py:run_busy_loop",
            "vllm/v1/engine/core.py:_process_engine_step",
            "vllm/v1/worker/gpu_model_runner.py:execute_model",
        )
        + f"{_CORE}{_OOM}",
        "vllm",
        "out of memory while serving",
        "CUDA out of memory",
    ),
    "no pool, through Ray": Paste(
        "(RayWorkerWrapper pid=339, ip=10.0.0.4) INFO 03-29 01:24:36 worker.py:272] model weights "
        "take 21.30GiB; non_torch_memory takes 0.14GiB; PyTorch activation peak memory takes "
        "1.41GiB; the rest of the memory reserved for KV Cache is -1.68GiB.\n"
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.\n",
        "vllm",
        "no room for pool",
        "No available memory",
    ),
    "a crowded card": Paste(
        _frames("(EngineCore_0 pid=5) ", _SITE, "vllm/v1/worker/gpu_worker.py:init_device")
        + "(EngineCore_0 pid=5) ValueError: Free memory on device (18.21/23.52 GiB) on startup is "
        "less than desired GPU memory utilization (0.9, 21.16 GiB). Decrease GPU memory "
        "utilization or reduce GPU memory used by other processes.\n",
        "vllm",
        "free memory below utilization",
        "Free memory on device",
        "--gpu-memory-utilization 0.77",
    ),
    "the server's last words": Paste(
        "(APIServer pid=1) ERROR 11-02 12:00:40 [core_client.py:564] Engine core process died\n"
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {}\n",
        "vllm",
        "unknown",
    ),
    "a core that the system ended": Paste(
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {'EngineCore_DP0': -9}\n",
        "vllm",
        "host memory",
        "Failed core proc",
    ),
    "Ray ends a worker": Paste(
        "(RayWorkerWrapper pid=88, ip=10.0.0.4) INFO 03-29 01:24:36 [loader.py:2] Loading weights\n"
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n",
        "vllm",
        "host memory",
        "running low on memory",
    ),
    "the start alone": Paste(
        "(APIServer pid=1) INFO 11-02 12:00:00 [api_server.py:1839] vLLM API server version 0.11.0\n"
        "(EngineCore_DP0 pid=20) INFO 11-02 12:00:09 [gpu_model_runner.py:2602] Starting to load "
        "model Qwen/Qwen3-8B...\n",
        "vllm",
        "unknown",
    ),
}

_SGL = "[2025-06-11 08:03:27 TP0] "
SGLANG = {
    "scheduler's traceback": Paste(
        f"{_SGL}Scheduler hit an exception: Traceback (most recent call last):\n"
        + _frames("", "/sgl-workspace/sglang/python", "sglang/srt/managers/scheduler.py:__init__")
        + _frames("", "/sgl-workspace/sglang/python", "sglang/srt/m/runner.py:init_memory_pool")
        + "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current "
        "value: self.server_args.mem_fraction_static=0.6\n",
        "sglang",
        "no room for pool",
        "Not enough memory",
    ),
    "traceback's end, weights": Paste(
        _frames(
            "",
            "/sgl-workspace/sglang/python",
            "sglang/srt/model_executor/model_runner.py:load_model",
            "sglang/srt/models/deepseek_v2.py:__init__",
        )
        + _OOM,
        "sglang",
        "weights do not fit",
        "CUDA out of memory",
    ),
    "a layer of vLLM's in its traceback": Paste(
        _frames("", _SITE, "sglang/srt/model_executor/model_runner.py:load_model")
        + _frames("", _SITE, "vllm/model_executor/layers/linear.py:create_weights")
        + _OOM,
        "sglang",
        "weights do not fit",
        "CUDA out of memory",
    ),
    "middle, several ranks": Paste(
        "[2025-06-11 08:03:27 DP0 TP0] Load weight end. type=Qwen3ForCausalLM, "
        "dtype=torch.bfloat16, avail mem=61.60 GB, mem usage=15.40 GB.\n"
        "[2025-06-11 08:03:28 DP0 TP0] KV Cache is allocated. #tokens: 311276, K size: 21.37 GB, "
        "V size: 21.37 GB\n",
        "sglang",
        "ok",
    ),
    "capture, no traceback's start": Paste(
        f"{_SGL}Capture cuda graph begin. This can take up to several minutes. avail mem=1.02 GB\n"
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 20.00 MiB. GPU "
        "0 has a total capacity of 23.52 GiB of which 12.94 MiB is free.\n",
        "sglang",
        "capture out of headroom",
        "CUDA out of memory",
        "--disable-cuda-graph",
    ),
    "capture in the newest words": Paste(
        "[2026-05-11 08:03:27 TP0] Capture decode CUDA graph begin. backend=full, avail mem=0.9 GB\n"
        "Exception: CUDA error: out of memory\n",
        "sglang",
        "capture out of headroom",
        "CUDA error: out of memory",
    ),
    "a negative number of tokens": Paste(
        "[2025-07-02 07:41:58 DP0 TP0] Load weight end. type=DeepseekV3ForCausalLM, "
        "dtype=torch.bfloat16, avail mem=21.73 GB, mem usage=166.59 GB.\n"
        "[2025-07-02 07:41:59 DP0 TP0] max_total_tokens=131072 is larger than the profiled value "
        "-561981. Use the profiled value instead.\n",
        "sglang",
        "no room for pool",
        "-561981",
    ),
    "the first versions' ranks": Paste(
        "[gpu=0] Load weight begin. avail mem=23.30 GB\n"
        "[gpu=0] Load weight end. type=LlamaForCausalLM, dtype=torch.float16, avail mem=8.10 GB\n"
        "[gpu=0] Memory pool end. avail mem=2.31 GB\n",
        "sglang",
        "unknown",
    ),
    "serving": Paste(
        f"{_SGL}Decode batch. #running-req: 4, #token: 9071, token usage: 0.01, gen throughput "
        "(token/s): 88.1, #queue-req: 0\n"
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for "
        "`--max-running-requests`. self.req_to_token_pool.available_size()=1, num_reqs=2,\n",
        "sglang",
        "out of memory while serving",
        "alloc_req_slots",
    ),
}

_TRT = "[TensorRT-LLM][INFO] "
TENSORRT = {
    "component that could not be made": Paste(
        f'  File "{_SITE}/tensorrt_llm/_torch/pyexecutor/py_executor_creator.py", line 147, in '
        "observe_creation_stage\n    raise RuntimeError(explanation) from e\n"
        "RuntimeError: Executor creation failed due to insufficient GPU memory.\n\n"
        "The following component could not be created: Model\n"
        "Total GPU memory (GiB): 39.39\n"
        "Free GPU memory before component creation attempt (GiB): 38.93\n",
        "tensorrt-llm",
        "weights do not fit",
        "insufficient GPU memory",
    ),
    "pool that could not be made": Paste(
        "RuntimeError: Executor creation failed due to insufficient GPU memory.\n\n"
        "The following component could not be created: KV cache\n"
        "Total GPU memory (GiB): 39.39\n"
        "Free GPU memory before component creation attempt (GiB): 10.51\n",
        "tensorrt-llm",
        "pool does not fit",
        "insufficient GPU memory",
    ),
    "what is recorded could not be made": Paste(
        "[TRT-LLM] [E] Executor creation failed due to insufficient GPU memory.\n"
        "The following component could not be created: Model resources created during usage\n"
        "Total GPU memory (GiB): 39.39\n"
        "Free GPU memory before component creation attempt (GiB): 0.21\n",
        "tensorrt-llm",
        "capture out of headroom",
        "insufficient GPU memory",
    ),
    "one sequence is larger than the pool": Paste(
        f"{_TRT}Max tokens in paged KV cache: 128. Allocating 16777216 bytes.\n"
        f"{_TRT}Max KV cache pages per sequence: 16\n"
        "[TensorRT-LLM][ERROR] Assertion failed: maxTokensInPagedKvCache (128) must be large "
        "enough to process at least 1 sequence to completion\n",
        "tensorrt-llm",
        "request larger than pool",
        "must be large enough",
    ),
    "stamped lines alone": Paste(
        "[02/14/2025-09:38:53] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + "
        "non-torch): 16.23 GiB, available KV cache memory when calculating max tokens: 53.11 GiB\n"
        "[02/14/2025-09:38:54] [TRT-LLM] [I] Estimated max tokens in KV cache : 435072\n",
        "tensorrt-llm",
        "unknown",
    ),
    "the builder's allocation": Paste(
        "[05/05/2024-09:10:33] [TRT] [E] [virtualMemoryBuffer.cpp::resizePhysical::144] Error Code "
        "2: OutOfMemory (Requested size was 34359738368 bytes.)\n",
        "tensorrt-llm",
        "out of memory",
        "OutOfMemory",
    ),
}

LLAMACPP = {
    "weights, last lines": Paste(
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 20841.12 MiB on device 0: "
        "cudaMalloc failed: out of memory\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 21853500416\n"
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
        "llama_model_load_from_file_impl: failed to load model\n"
        "srv    load_model: failed to load model, 'models/q4.gguf'\n",
        "llama.cpp",
        "weights do not fit",
        "unable to allocate CUDA0 buffer",
    ),
    "cache, one line": Paste(
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv "
        "cache\n",
        "llama.cpp",
        "pool does not fit",
        "kv cache",
    ),
    "compute buffer, one line": Paste(
        "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 4336955392\n",
        "llama.cpp",
        "step does not fit",
        "4336955392",
    ),
    "a request's allocation": Paste(
        "srv  update_slots: all slots are idle\n"
        "slot launch_slot_: id  0 | task 12 | processing task\n"
        "CUDA error: out of memory\n"
        "  current device: 0, in function alloc at ggml/src/ggml-cuda/ggml-cuda.cu:466\n",
        "llama.cpp",
        "out of memory while serving",
        "CUDA error: out of memory",
    ),
    "the card's memory, through Ollama": Paste(
        'time=2025-04-29T12:31:50.212+02:00 level=ERROR source=server.go:449 msg="llama runner '
        'terminated" error="exit status 2"\n'
        "time=2025-04-29T12:31:50.345+02:00 level=ERROR source=sched.go:457 "
        'msg="error loading llama server" '
        'error="llama runner process has terminated: cudaMalloc failed: out of memory"\n',
        "llama.cpp",
        "out of memory",
        "cudaMalloc failed",
    ),
    "the machine's memory, through Ollama": Paste(
        'time=2025-08-02T10:11:12.345Z level=INFO source=sched.go:448 msg="Load failed" '
        'error="model requires more system memory (23.4 GiB) than is available (11.9 GiB)"\n',
        "llama.cpp",
        "host memory",
        "more system memory",
    ),
    "prefixed lines of the server": Paste(
        "0.01.204.112 I srv    load_model: loading model 'models/q4.gguf'\n"
        "0.02.881.540 E srv    load_model: failed to load model, 'models/q4.gguf'\n",
        "llama.cpp",
        "unknown",
    ),
}

NANOSERVE = {
    "the refusal alone": Paste(
        "nanoserve: The KV pool of 182 blocks (2,912 tokens) cannot hold one request of 8,192 "
        "tokens. It needs 180.0 MiB; 64.0 MiB is available. Any one of these would do: "
        "--max-model-len 2912; --kv-cache-bytes 1440MiB.\n",
        "nanoserve",
        "request larger than pool",
        "cannot hold one request",
        "--max-model-len 2912",
    ),
    "the end of a start": Paste(
        "this process at start  191.8 MiB  191.8 MiB   0.0 MiB\n"
        "kv pool                360.0 MiB  360.0 MiB   0.0 MiB\n"
        "ready in 1.9 s; smollm2 on http://127.0.0.1:8061\n",
        "nanoserve",
        "ok",
    ),
}

PASTES = {
    f"{engine}, {name}": paste
    for engine, pastes in (
        ("vLLM", VLLM),
        ("SGLang", SGLANG),
        ("TensorRT-LLM", TENSORRT),
        ("llama.cpp", LLAMACPP),
        ("nanoserve", NANOSERVE),
        ("found", {name: Paste(*found) for name, found in FOUND.items()}),
    )
    for name, paste in pastes.items()
}
