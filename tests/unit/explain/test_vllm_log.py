"""vLLM's logs over its versions, lines as it prints them."""

import pytest

from nanoserve.explain.log_format import read_log
from nanoserve.explain.log_text import plain_log
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.explain.vllm_log import VLLM_LOG
from nanoserve.units import GIB

EARLY = """\
INFO 01-12 10:00:00 llm_engine.py:70] Initializing an LLM engine (v0.2.7) with config: \
model='meta-llama/Llama-2-7b-hf', tokenizer='x', max_seq_len=4096, tensor_parallel_size=2, \
enforce_eager=False, seed=0)
INFO 01-12 10:01:00 llm_engine.py:275] # GPU blocks: 7449, # CPU blocks: 512
INFO 01-12 10:01:02 model_runner.py:501] Capturing the model for CUDA graphs. This may lead to \
unexpected consequences if the model is not static. To run the model in eager mode, set \
'enforce_eager=True' or use '--enforce-eager' in the CLI.
INFO 01-12 10:01:02 model_runner.py:505] CUDA graphs can take additional 1~3 GiB memory per GPU. \
If you are running out of memory, consider decreasing `gpu_memory_utilization`.
INFO 01-12 10:01:09 model_runner.py:547] Graph capturing finished in 7 secs.
INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)
"""
PROFILED = """\
INFO 12-22 10:55:34 model_runner.py:1097] Loading model weights took 8.5107 GB
INFO 12-22 10:55:34 worker.py:241] Memory profiling takes 0.69 seconds
INFO 12-22 10:55:34 worker.py:241] the current vLLM instance can use total_gpu_memory (79.25GiB) \
x gpu_memory_utilization (0.15) = 11.89GiB
INFO 12-22 10:55:34 worker.py:241] model weights take 8.51GiB; non_torch_memory takes 0.26GiB; \
PyTorch activation peak memory takes 0.94GiB; the rest of the memory reserved for KV Cache is \
2.18GiB.
INFO 12-22 10:55:35 gpu_executor.py:76] # CUDA blocks: 715, # CPU blocks: 1310
INFO 12-22 10:55:35 gpu_executor.py:80] Maximum concurrency for 2048 tokens per request: 5.59x
INFO 12-22 10:55:48 model_runner.py:1527] Graph capturing finished in 10 secs, took 0.11 GiB
"""
PROFILED_BEFORE = """\
INFO 12-05 21:05:48 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB \
initial_memory_usage=15.31GiB peak_torch_memory=17.98GiB memory_usage_post_profile=15.35GiB \
non_torch_memory=0.35GiB kv_cache_size=2.89GiB gpu_memory_utilization=0.90
INFO 12-05 21:05:48 gpu_executor.py:76] # GPU blocks: 1478, # CPU blocks: 2048
ValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can \
be stored in KV cache (23648). Try increasing `gpu_memory_utilization` or decreasing
"""
V1 = """\
(APIServer pid=1) INFO 09-23 18:12:00 [api_server.py:1896] vLLM API server version 0.10.2
(EngineCore_DP0 pid=3021) INFO 09-23 18:12:01 [core.py:76] Initializing a V1 LLM engine (v0.10.2) \
with config: model='Qwen/Qwen2.5-7B', max_seq_len=4096, tensor_parallel_size=1, enforce_eager=False
(EngineCore_DP0 pid=3021) INFO 09-23 18:12:30 [gpu_model_runner.py:2338] Starting to load model Q...
(EngineCore_DP0 pid=3021) INFO 09-23 18:12:34 [gpu_worker.py:298] Available KV cache memory: 55.15 GiB
(EngineCore_DP0 pid=3021) INFO 09-23 18:12:34 [kv_cache_utils.py:864] GPU KV cache size: 451,744 tokens
(EngineCore_DP0 pid=3021) INFO 09-23 18:12:34 [kv_cache_utils.py:868] Maximum concurrency for 4,096 \
tokens per request: 110.29x
(EngineCore_DP0 pid=3021) INFO 09-23 18:12:39 [gpu_model_runner.py:3118] Graph capturing finished \
in 5 secs, took 0.67 GiB
(EngineCore_DP0 pid=3021) INFO 09-23 18:12:39 [gpu_worker.py:391] Free memory on device \
(78.66/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 GiB). Actual usage is \
14.08 GiB for weight, 1.97 GiB for peak activation, 0.07 GiB for non-torch memory, and 0.67 GiB \
for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=58333988249` \
to fit. Current kv cache memory in use is 59212694937 bytes.
(APIServer pid=1) INFO:     Application startup complete.
"""
RANKS = """\
(Worker_TP0 pid=2) INFO 07-08 01:31:12 [gpu_model_runner.py:6605] Estimated CUDA graph memory: 1.97 GiB total
(Worker_TP0 pid=2) INFO 07-08 01:31:12 [gpu_worker.py:515] Available KV cache memory: 16.81 GiB
(Worker_TP1 pid=3) INFO 07-08 01:31:12 [gpu_worker.py:515] Available KV cache memory: 16.79 GiB
(Worker_TP0 pid=2) INFO 07-08 01:31:12 [gpu_worker.py:530] CUDA graph memory profiling is enabled \
(default since v0.21.0). The current --gpu-memory-utilization=0.8000 is equivalent to \
--gpu-memory-utilization=0.7890 without CUDA graph memory profiling. To maintain the same \
effective KV cache size as before, increase --gpu-memory-utilization to 0.8110.
(EngineCore pid=1) INFO 07-08 01:31:13 [kv_cache_utils.py:2464] GPU KV cache size: 460,496 tokens, \
Maximum concurrency for 131,072 tokens per request: 3.51x
(Worker_TP0 pid=2) INFO 07-08 01:31:20 [gpu_worker.py:667] CUDA graph pool memory: 1.22 GiB \
(actual), 1.97 GiB (estimated), difference: 0.75 GiB (61.5%).
"""
MERGED = """\
INFO 10-06 17:00:41 [gpu_worker.py:955] Free memory on device (78.84/79.25 GiB) on startup. \
Desired GPU memory utilization is (0.92, 72.91 GiB). Actual usage is 15.26 GiB for consumed \
memory (weights + non-torch), 1.44 GiB for peak activation, and 0.23 GiB for CUDAGraph memory.
"""


def read(text: str) -> LoggedBoot:
    return read_log(VLLM_LOG, plain_log(text).text)


def gib(value: float) -> int:
    return round(value * GIB)


def test_the_first_versions_log_blocks_alone() -> None:
    """0.2 prints blocks and no bytes; its advice about memory is no error."""
    boot = read(EARLY)

    assert boot.version == "0.2.7"
    assert boot.model == "meta-llama/Llama-2-7b-hf"
    assert (boot.num_blocks, boot.tokens, boot.max_model_len) == (7449, 119_184, 4096)
    assert boot.tensor_parallel == 2
    assert boot.is_eager is False
    assert boot.is_ready
    assert boot.error is None


def test_a_profile_with_every_part() -> None:
    """0.6.5 to 0.8 print the whole division of the budget."""
    boot = read(PROFILED)

    assert boot.total_bytes == gib(79.25)
    assert boot.utilization == 0.15
    assert boot.requested_bytes == gib(11.89)
    assert boot.weight_bytes == gib(8.5107)
    assert boot.non_torch_bytes == gib(0.26)
    assert boot.activation_bytes == gib(0.94)
    assert boot.pool_bytes == gib(2.18)
    assert boot.graph_bytes == gib(0.11)
    assert (boot.num_blocks, boot.max_concurrency) == (715, 5.59)


def test_the_profile_of_the_versions_before() -> None:
    """0.6.3 and 0.6.4 print it as keys and values, and compare tokens."""
    boot = read(PROFILED_BEFORE)

    assert (boot.total_bytes, boot.pool_bytes) == (gib(23.58), gib(2.89))
    assert boot.error is not None
    assert boot.error.kind == "request larger than pool"
    assert (boot.error.need_tokens, boot.error.have_tokens) == (29_000, 23_648)


def test_a_healthy_v1_boot() -> None:
    """The free memory at the start is printed in the words of the refusal, and is none."""
    boot = read(V1)

    assert (boot.version, boot.model) == ("0.10.2", "Qwen/Qwen2.5-7B")
    assert (boot.free_bytes, boot.total_bytes) == (gib(78.66), gib(79.19))
    assert (boot.utilization, boot.budget_bytes) == (0.9, gib(71.27))
    assert boot.weight_bytes == gib(14.08)
    assert boot.activation_bytes == gib(1.97)
    assert boot.non_torch_bytes == gib(0.07)
    assert boot.graph_bytes == gib(0.67)
    assert boot.pool_bytes == 59_212_694_937
    assert (boot.pool_tokens, boot.max_concurrency) == (451_744, 110.29)
    assert boot.is_ready
    assert boot.error is None


def test_several_ranks_and_a_graph_estimate() -> None:
    """The smallest pool of the ranks decides; since 0.21 the estimate is in the budget."""
    boot = read(RANKS)

    assert boot.pool_bytes == gib(16.79)
    assert boot.utilization == 0.8
    assert boot.graph_estimate_bytes == gib(1.97)
    assert boot.graph_bytes == gib(1.22)
    assert boot.is_graph_estimate_in_budget is True
    assert (boot.pool_tokens, boot.max_model_len) == (460_496, 131_072)


def test_the_announcement_of_the_estimate() -> None:
    """0.18 and 0.19 measure the estimate and do not take it off yet."""
    boot = read(
        "INFO 04-07 [gpu_worker.py:470] In v0.19, CUDA graph memory profiling will be enabled by "
        "default (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1)"
    )

    assert boot.is_graph_estimate_in_budget is False


def test_weights_and_the_rest_as_one() -> None:
    """Newer versions print weights and what is outside the allocator together."""
    boot = read(MERGED)

    assert boot.consumed_bytes == gib(15.26)
    assert boot.weight_bytes is None
    assert boot.activation_bytes == gib(1.44)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (4.50 GiB). Based "
        "on the available memory, the estimated maximum model length is 32768.",
        "ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GB "
        "KV cache is needed, which is larger than the available KV cache memory (4.50 GB). Based "
        "on the available memory, the estimated maximum model length is 32768.",
        "ValueError: To serve at least one request with the model's max seq len (40960),\n  5.62 GiB "
        "KV cache is needed, which is larger than the available KV cache memory\n(4.50 GiB). Based "
        "on the available memory, the estimated maximum model length is 32,768. Try",
    ],
)
def test_one_request_larger_than_the_pool(text: str) -> None:
    """Two wordings, wrapped or not, and vLLM's GB, which are GiB, give the same numbers."""
    error = read(text).error

    assert error is not None
    assert error.kind == "request larger than pool"
    assert (error.need_bytes, error.have_bytes) == (gib(5.62), gib(4.50))
    assert (error.need_tokens, error.fitting_len) == (40_960, 32_768)


def test_less_free_than_asked_for() -> None:
    """The refusal at the start names what is free and what is wanted."""
    error = read(
        "ValueError: Free memory on device cuda:0 (67.24/79.25 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 71.33 GiB). Decrease GPU memory utilization"
    ).error

    assert error is not None
    assert error.kind == "free memory below utilization"
    assert (error.have_bytes, error.need_bytes) == (gib(67.24), gib(71.33))


def test_memory_that_changed_while_measuring() -> None:
    """Another process gave memory back during the profile."""
    error = read(
        "AssertionError: Error in memory profiling. Initial free memory 11.50 GiB, current free "
        "memory 14.20 GiB. This happens when other processes sharing the same container"
    ).error

    assert error is not None
    assert error.kind == "memory changed while measuring"
    assert error.need_bytes == gib(14.20)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "ValueError: No available memory for the cache blocks. Try increasing",
            "no room for pool",
        ),
        ("ValueError: Model architectures ['X'] are not supported for now.", "unsupported"),
        ("vllm: error: unrecognized arguments: --max-len", "option"),
        (
            "max_num_seqs (1024) exceeds available Mamba cache blocks (614)",
            "too many requests for state",
        ),
    ],
)
def test_other_refusals(text: str, kind: str) -> None:
    """Each of vLLM's refusals has its kind."""
    error = read(text).error

    assert error is not None
    assert error.kind == kind


@pytest.mark.parametrize(
    ("before", "stage"),
    [
        ("Starting to load model x...", "weights"),
        ("Model loading took 8.6 GiB and 3 seconds", "profile"),
        ("GPU KV cache size: 8,192 tokens", "pool"),
        ("Capturing CUDA graphs (decode, FULL): 0%|", "capture"),
        ("Application startup complete.", "serving"),
        (
            "Model loading took 8 GiB\nTraceback (m\n  File x, line 1, in _allocate_kv_cache\n",
            "pool",
        ),
        ("CUDA out of memory occurred when warming up sampler with 256 dummy requests", "capture"),
    ],
)
def test_what_was_being_done_when_memory_ran_out(before: str, stage: str) -> None:
    """The stage comes from the traceback, or from what was printed last."""
    error = read(
        f"{before}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    ).error

    assert error is not None
    assert error.stage == stage
    assert error.kind == "out of memory"


def test_preemptions_of_the_log() -> None:
    """The first engine counts preemptions in its warnings."""
    boot = read(
        "WARNING scheduler.py:1057] Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode "
        "because there is not enough KV cache space. total_num_cumulative_preemption=51"
    )

    assert boot.num_preemptions == 51


def test_a_pool_that_was_stated() -> None:
    """With its bytes on the command line nothing is profiled."""
    boot = read(
        "INFO [gpu_worker.py:492] Initial free memory 31.16 GiB, reserved 4.25 GiB memory for KV Cache "
        "as specified by kv_cache_memory_bytes config and skipped memory profiling."
    )

    assert (boot.free_bytes, boot.pool_bytes) == (gib(31.16), gib(4.25))


def test_an_engine_that_failed_for_a_reason_of_its_own() -> None:
    """A boot that got as far as its pool and stopped is no healthy one."""
    log = "Available KV cache memory: 6.94 GiB\nERROR [core.py:1100] EngineCore failed to start.\n"
    known = read(f"{log}ValueError: No available memory for the cache blocks.").error
    unknown = read(log).error

    assert known is not None
    assert known.kind == "no room for pool"
    assert unknown is not None
    assert (unknown.kind, unknown.stage) == ("unclear", "pool")


def test_a_profile_in_full_sentences() -> None:
    """The detailed profile of the second engine."""
    boot = read(
        "Initial free memory: 43.90 GiB; Requested memory: 0.95 (util), 42.17 GiB\n"
        "Memory profiling takes 26.21 seconds. Total non KV cache memory: 1.48GiB; torch peak memory "
        "increase: 0.52GiB; non-torch forward increase memory: 0.04GiB; weights memory: 0.93GiB."
    )

    assert (boot.free_bytes, boot.utilization, boot.budget_bytes) == (gib(43.9), 0.95, gib(42.17))
    assert boot.activation_bytes == gib(0.52)
    assert boot.non_torch_bytes == gib(0.04)
    assert boot.weight_bytes == gib(0.93)


def test_free_memory_from_what_was_in_use_with_the_weights() -> None:
    """0.6.4 prints what was in use on the card once they were loaded: 79 - 72 + 1 GiB."""
    text = (
        "INFO 11-18 18:07:40 model_runner.py:1077] Loading model weights took 1.0 GB\n"
        "INFO 11-18 18:07:43 worker.py:232] Memory profiling results: total_gpu_memory=79.00GiB "
        "initial_memory_usage=72.00GiB peak_torch_memory=2.16GiB\n"
    )
    boot = read(text)
    unknown = read(text.partition("\n")[2])

    assert boot.free_bytes == 8 * GIB
    assert unknown.free_bytes is None
