"""How each engine spells the options that decide about memory. Data alone."""

_FLAGS = {
    "vllm": {
        "utilization": "--gpu-memory-utilization {:.2f}",
        "length": "--max-model-len {}",
        "eight bits": "--kv-cache-dtype fp8",
        "eager": "--enforce-eager",
        "slots": "--max-num-seqs {}",
        "step": "--max-num-batched-tokens {}",
        "gpus": "--tensor-parallel-size {}",
    },
    "sglang": {
        "utilization": "--mem-fraction-static {:.2f}",
        "length": "--context-length {}",
        "eight bits": "--kv-cache-dtype fp8_e4m3",
        "eager": "--disable-cuda-graph",
        "slots": "--max-running-requests {}",
        "step": "--chunked-prefill-size {}",
        "gpus": "--tp-size {}",
    },
    "tensorrt-llm": {
        "length": "--max_seq_len {}",
        "slots": "--max_batch_size {}",
        "step": "--max_num_tokens {}",
        "gpus": "--tp_size {}",
    },
    "llama.cpp": {
        "length": "--ctx-size {}",
        "eight bits": "--cache-type-k q8_0 --cache-type-v q8_0",
        "slots": "--parallel {}",
        "step": "--ubatch-size {}",
        "layers": "--n-gpu-layers {}",
    },
    "nanoserve": {
        "utilization": "--gpu-memory-utilization {:.2f}",
        "length": "--max-model-len {}",
        "eager": "--decode-mode eager",
        "slots": "--max-num-seqs {}",
        "step": "--max-num-batched-tokens {}",
        "pool": "--kv-cache-bytes {}MiB",
    },
}


def engine_flag(engine: str | None, option: str, value: float | None = None) -> str | None:
    """Return an option as it is typed; None where the engine has none.

    Args:
        engine: A log of no known engine is answered as vLLM's.
        option: `utilization`, `length`, `eight bits`, `eager`, `slots`, `step`, `gpus`,
            `layers` or `pool`.
        value: What it is set to; None for one that takes no value.
    """
    pattern = _FLAGS[engine or "vllm"].get(option)
    return None if pattern is None else pattern.format(value)
