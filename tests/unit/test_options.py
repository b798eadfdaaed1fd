"""Options are checked once, where they are built."""

from typing import Any

import pytest

from nanoserve.errors import OptionError
from nanoserve.options import EngineOptions, ServerOptions


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"max_model_len": 0}, "--max-model-len"),
        ({"max_model_len": 1}, "--max-model-len is 1; it must be at least 2"),
        ({"block_size": 12}, "--block-size"),
        ({"block_size": 0}, "--block-size"),
        ({"num_blocks": 5, "kv_cache_bytes": 5}, "--num-blocks"),
        ({"kv_cache_bytes": 0}, "--kv-cache-bytes"),
        ({"gpu_memory_utilization": 0.0}, "--gpu-memory-utilization"),
        ({"gpu_memory_utilization": float("nan")}, "--gpu-memory-utilization"),
        ({"max_num_batched_tokens": 4}, "--max-num-batched-tokens"),
        ({"threads": 0}, "--threads"),
        ({"target_itl_ms": 0.0}, "--target-itl-ms"),
        ({"target_itl_ms": float("nan")}, "--target-itl-ms"),
        ({"target_itl_ms": 1e12}, "--target-itl-ms .* at most 3,600,000"),
        ({"threads": 1025}, "--threads"),
        ({"threads": True}, "--threads is True; it must be"),
        ({"num_blocks": 1.5}, "--num-blocks"),
        ({"device": "tpu"}, "--device is 'tpu'; it must be auto, cpu, cuda"),
        ({"dtype": None}, "--dtype"),
        ({"enable_prefix_caching": "no"}, "--enable-prefix-caching"),
        ({"kv_cache_bytes": "1GiB"}, "--kv-cache-bytes is '1GiB'; it must be of type int"),
        ({"model": None}, "--model"),
        ({"warm_rows": 0}, "--warm-rows"),
        ({"warm_width": 0}, "--warm-width"),
        ({"capture_limit": 0}, "--capture-limit"),
        ({"capture_bytes": 0}, "--capture-bytes"),
        ({"kv_pool": "all"}, "--kv-pool is 'all'; it must be auto, fill, demand"),
        ({"memory_policy": "auto"}, "--memory-policy is 'auto'; it must be device, process"),
        ({"trace_file": ""}, "--trace-file is ''; it must be a file name"),
        ({"boot_report": ""}, "--boot-report"),
        ({"cuda_graphs": True, "decode_mode": "eager"}, "--cuda-graphs means --decode-mode capt"),
        ({"cuda_graphs": False, "decode_mode": "bucketed"}, "--no-cuda-graphs means"),
        ({"quantization": "int2"}, "--quantization is 'int2'; it must be none, int8, int4"),
        ({"quantization": "int8", "compile": True}, "--quantization int8 needs.*--compile does"),
        ({"quantization": "int4", "device": "cuda"}, "--quantization int4 .* --device cuda does"),
        (
            {"quantization": "int4", "attention_backend": "torch"},
            "--quantization int4 .* --attention-backend torch does",
        ),
        ({"deterministic": True, "compile": True}, "--deterministic cannot be combined"),
    ],
)
def test_impossible_engine_options_name_the_flag(values: dict[str, Any], flag: str) -> None:
    """An impossible value is refused with its flag."""
    with pytest.raises(OptionError, match=flag):
        EngineOptions(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"port": 70000},
        {"max_queue": -1},
        {"max_queued_tokens": 0},
        {"drain_seconds": -1.0},
        {"log_level": "loud"},
        {"host": ""},
        {"served_model_name": ""},
        {"served_model_name": "n\udce9"},
    ],
)
def test_impossible_server_options_name_the_flag(values: dict[str, Any]) -> None:
    """An impossible value is refused with its flag."""
    (name,) = values
    with pytest.raises(OptionError, match=f"--{name.replace('_', '-')}"):
        ServerOptions(**values)


@pytest.mark.parametrize("decode_mode", ["auto", "captured"])
def test_graphs_and_mode_may_say_the_same(decode_mode: str) -> None:
    """The operator's word for the top rung may stand beside the rung's own name."""
    options = EngineOptions(cuda_graphs=True, decode_mode=decode_mode)  # type: ignore[arg-type]

    assert options.cuda_graphs
