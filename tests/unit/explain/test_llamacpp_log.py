"""llama.cpp's logs over two years, lines as it prints them."""

import pytest

from nanoserve.explain.llamacpp_log import LLAMACPP_LOG
from nanoserve.explain.log_format import read_log
from nanoserve.explain.log_text import plain_log
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.units import MIB

BOOT = """\
build: 6100 (abc12345) with cc (Ubuntu 11.4.0) for x86_64-linux-gnu
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) - 23905 MiB free
llama_model_load_from_file_impl: using device CUDA1 (NVIDIA GeForce RTX 3090) - 24000 MiB free
llama_model_loader: loaded meta data with 30 key-value pairs
llama_model_loader: - kv   2:  general.name str              = Qwen3 8B
llama_model_loader: - kv   3:  general.basename str          = Qwen3
load_tensors:   CPU_Mapped model buffer size =   682.03 MiB
load_tensors:        CUDA0 model buffer size =  8000.00 MiB
load_tensors:        CUDA1 model buffer size =  7339.44 MiB
llama_context: n_seq_max     = 4
llama_context: n_ctx         = 65536
llama_context: n_batch       = 2048
llama_kv_cache:      CUDA0 KV buffer size =  2048.00 MiB
llama_kv_cache:      CUDA1 KV buffer size =  2048.00 MiB
llama_kv_cache: size = 4096.00 MiB ( 65536 cells,  16 layers,  4/4 seqs), K (f16): 2048.00 MiB, V
llama_context:      CUDA0 compute buffer size =   300.00 MiB
llama_context:  CUDA_Host compute buffer size =   148.01 MiB
main: server is listening on http://127.0.0.1:8080 - starting the main loop
"""
OLD = """\
0.00.030.563 I llama_new_context_with_model: n_ctx      = 512
0.00.033.749 I llama_kv_cache_init:        CPU KV buffer size =     9.00 MiB
0.00.033.770 I llama_new_context_with_model: KV self size  =    9.00 MiB, K (f16):    4.50 MiB, V
0.00.035.287 I llama_new_context_with_model:        CPU compute buffer size =    16.01 MiB
"""
FAILED = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 590.07 MiB on device 0: cudaMalloc failed: out of memory\n"


def read(text: str) -> LoggedBoot:
    return read_log(LLAMACPP_LOG, plain_log(text).text)


def test_buffers_are_summed_over_the_gpus() -> None:
    """What lies in host memory is not the cards'."""
    boot = read(BOOT)

    assert (boot.version, boot.model) == ("6100", "Qwen3 8B")
    assert boot.weight_bytes == round(15339.44 * MIB)
    assert boot.pool_bytes == 4096 * MIB
    assert boot.activation_bytes == 300 * MIB
    assert boot.free_bytes == (23905 + 24000) * MIB
    assert (boot.pool_tokens, boot.max_model_len, boot.max_num_seqs) == (65_536, 65_536, 4)
    assert boot.is_ready
    assert boot.error is None


def test_without_a_gpu_the_host_counts() -> None:
    """A boot on a CPU has its buffers there."""
    boot = read(OLD)

    assert boot.pool_bytes == 9 * MIB
    assert boot.activation_bytes == round(16.01 * MIB)
    assert boot.max_model_len == 512


def test_ollamas_estimate() -> None:
    """Its runner says what it expects before llama.cpp says what it took."""
    boot = read(
        'time=2025-01-01 level=INFO msg="offload to cuda" memory.available="[23.3 GiB]" '
        'memory.required.full="6.5 GiB" memory.required.kv="1.0 GiB" '
        'memory.weights.total="4.5 GiB" memory.graph.full="560.0 MiB"'
    )

    assert (boot.pool_bytes, boot.activation_bytes) == (1024 * MIB, 560 * MIB)
    assert boot.weight_bytes == 4608 * MIB
    assert boot.free_bytes == round(23.3 * 1024 * MIB)


def test_a_size_that_is_none_is_passed_over() -> None:
    """A cut line is no buffer."""
    assert read("llama_kv_cache: CUDA0 KV buffer size = ").pool_bytes is None


def test_recurrent_state_is_part_of_the_pool() -> None:
    """Layers without keys and values hold a state of each request."""
    boot = read(
        "llama_kv_cache: CUDA0 KV buffer size = 100.00 MiB\n"
        "llama_memory_recurrent: CUDA0 RS buffer size = 12.50 MiB\n"
    )

    assert boot.pool_bytes == round(112.5 * MIB)


@pytest.mark.parametrize(
    ("text", "kind", "stage"),
    [
        (
            f"{FAILED}llama_init_from_model: failed to initialize the context: failed to allocate "
            "buffer for kv cache",
            "out of memory",
            "pool",
        ),
        (
            f"{FAILED}llama_model_load: error loading model: unable to allocate CUDA0 buffer",
            "out of memory",
            "weights",
        ),
        (f"{FAILED}graph_reserve: failed to allocate compute buffers", "out of memory", "profile"),
        (f"load_tensors: loading\n{FAILED}", "out of memory", "weights"),
        ("error loading model: unknown model architecture: 'x'", "unsupported", "start"),
    ],
)
def test_what_stops_a_boot(text: str, kind: str, stage: str) -> None:
    """The line after a failed allocation says what it was for."""
    error = read(text).error

    assert error is not None
    assert (error.kind, error.stage) == (kind, stage)
    if kind == "out of memory":
        assert error.need_bytes == round(590.07 * MIB)


def test_several_cards_and_what_they_have() -> None:
    """Totals are summed over the cards, their own sum left out; newer versions project."""
    boot = read(
        "ggml_cuda_init: found 2 CUDA devices (Total VRAM: 48256 MiB):\n"
        "  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes, VRAM: 24128 MiB\n"
        "  Device 1: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes, VRAM: 24128 MiB\n"
        "[34333] 0.00.202.251 I llama_params_fit_impl: projected to use 3287 MiB of device memory "
        "vs. 46100 MiB of free device memory\n"
        "load_tensors: offloaded 20/33 layers to GPU\n"
    )

    assert boot.total_bytes == 48256 * MIB
    assert boot.free_bytes == 46100 * MIB
    assert boot.num_devices == 2
    assert (boot.num_device_layers, boot.num_layers) == (20, 33)


def test_an_output_buffer_is_no_weight() -> None:
    """It has a kind, and lies in host memory; the first versions' weights had none."""
    boot = read(
        "llm_load_tensors:      CUDA0 buffer size = 12633.25 MiB\n"
        "llama_new_context_with_model:  CUDA_Host  output buffer size =     0.98 MiB\n"
        "llama_new_context_with_model:  CUDA_Host input buffer size   =     6.01 MiB\n"
    )

    assert boot.weight_bytes == round(12633.25 * MIB)


def test_devices_as_the_newest_list_them() -> None:
    """Each card with its total and what is free; the host's line beside them is none."""
    boot = read(
        "0.00.814.713 I cmn  common_param:   - CUDA0   : NVIDIA GeForce RTX 4090 (24563 MiB, 23040 "
        "MiB free)\n"
        "0.00.814.714 I cmn  common_param:   - Vulkan1 : AMD Radeon Graphics (RADV GFX1151) (65536 "
        "MiB, 64000 MiB free)\n"
        "0.00.814.720 I cmn  common_param:   - CPU     : AMD Ryzen 9 5950X (130973 MiB, 121881 MiB "
        "free)\n"
    )

    assert boot.total_bytes == (24563 + 65536) * MIB
    assert (boot.free_bytes, boot.num_devices) == ((23040 + 64000) * MIB, 2)


RETRIED = (
    FAILED
    + "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
)


def test_what_was_tried_again_stopped_nothing() -> None:
    """Only what failed after the second try did, with its own size."""
    again = (
        FAILED.replace("590.07", "256.00") + "graph_reserve: failed to allocate compute buffers\n"
    )
    stopped = read(RETRIED + again).error

    assert read(RETRIED).error is None
    assert stopped is not None
    assert (stopped.stage, stopped.need_bytes) == ("profile", 256 * MIB)


def test_a_backend_that_speaks_first_leaves_the_stage_to_the_next_line() -> None:
    """Vulkan's own failure says nothing of what the buffer was for."""
    error = read(
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory\n"
        "llama_init_from_model: failed to initialize: failed to allocate buffer for kv cache\n"
    ).error

    assert error is not None
    assert (error.kind, error.stage) == ("out of memory", "pool")
