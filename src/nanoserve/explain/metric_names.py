"""How each engine calls the figures of its load on a page of metrics. Data alone.

Source: `vllm/v1/metrics/loggers.py` and `vllm/engine/metrics.py` (0.4 to 0.33), SGLang's
`metrics/collector.py` (0.3 to 0.5), `tensorrt_llm/metrics/collector.py` (1.2), Triton's
TensorRT-LLM backend, llama.cpp's `tools/server` and this server's `server/metrics.py`.
"""

from typing import Final

ENGINES: Final = {  # what a sample begins with, to the engine
    "vllm:": "vllm",
    "vllm_": "vllm",
    "sglang:": "sglang",
    "sglang_": "sglang",
    "trtllm:": "tensorrt-llm",
    "trtllm_": "tensorrt-llm",
    "nv_trt_llm_": "tensorrt-llm",
    "llamacpp:": "llama.cpp",
    "llamacpp_": "llama.cpp",
    "nanoserve:": "nanoserve",
    "nanoserve_": "nanoserve",
}
COUNTERS: Final = {  # of two scrapes the difference
    "num_preemptions_total": "num_preemptions",
    "num_preemptions": "num_preemptions",
    "num_retracted_reqs_total": "num_preemptions",
    "num_retracted_requests_total": "num_preemptions",
    "request_success_total": "num_finished",
    "num_requests_total": "num_finished",
    "generation_tokens_total": "generation_tokens",
    "tokens_predicted_total": "generation_tokens",
    "prompt_tokens_total": "prompt_tokens",
}
GAUGES: Final = {  # of two scrapes the last
    "num_requests_running": "num_running",
    "num_running_reqs": "num_running",
    "requests_processing": "num_running",
    'request_metrics{request_type="active"}': "num_running",
    "num_requests_waiting": "num_waiting",
    "num_queue_reqs": "num_waiting",
    "queue_req": "num_waiting",
    "num_requests_swapped": "num_waiting",
    "requests_deferred": "num_waiting",
    'request_metrics{request_type="waiting"}': "num_waiting",
    "num_retracted_reqs": "now_retracted",
    "num_paused_requests": "now_retracted",
    'inflight_batcher_metrics{inflight_batcher_specific_metric="paused_requests"}': "now_retracted",
    "kv_cache_usage_perc": "pool_usage",
    "gpu_cache_usage_perc": "pool_usage",
    "token_usage": "pool_usage",
    "full_token_usage": "pool_usage",
    "swa_token_usage": "pool_usage",
    "mamba_usage": "pool_usage",
    "kv_cache_utilization": "pool_usage",
    "kv_cache_usage_ratio": "pool_usage",
    'kv_cache_block_metrics{kv_cache_block_type="fraction"}': "pool_usage",
    "max_total_num_tokens": "pool_tokens",
    "max_running_requests": "max_num_seqs",
    "max_batch_size_static": "max_num_seqs",
    'request_metrics{request_type="max"}': "max_num_seqs",
    "max_num_seqs": "max_num_seqs",
    "block_size": "block_size",
    "num_blocks_free": "some_blocks",
    "num_blocks_used": "some_blocks",
    "num_blocks_cached": "some_blocks",
    "kv_cache_max_blocks": "num_blocks",
    'kv_cache_block_metrics{kv_cache_block_type="max"}': "num_blocks",
    "kv_cache_tokens_per_block": "block_size",
    'kv_cache_block_metrics{kv_cache_block_type="tokens_per"}': "block_size",
    'memory_bytes{kind="planned",part="kv pool"}': "pool_bytes",
    'memory_bytes{kind="planned",part="unassigned"}': "spare_bytes",
}
LARGEST: Final = frozenset(  # of several engines, the largest; anything else is summed
    {
        "pool_usage",
        "pool_tokens",
        "max_num_seqs",
        "num_blocks",
        "block_size",
        "pool_bytes",
        "spare_bytes",
    }
)
KIND_LABELS: Final = (  # labels that say which figure a sample is; others say whose
    "request_type",
    "kv_cache_block_type",
    "inflight_batcher_specific_metric",
    "kind",
    "part",
)
RANK_LABELS: Final = ("tp_rank", "pp_rank", "moe_ep_rank")  # ranks above 0 repeat what 0 says
