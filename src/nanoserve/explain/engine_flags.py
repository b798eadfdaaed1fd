"""How each engine spells the options that decide about memory, and what their formats take."""

from fractions import Fraction

from nanoserve.capacity.engine_profile import version_numbers
from nanoserve.spec.kv_format import find_kv_format

_NOT_OLDER = ""
_HEAD_DIM = 256  # whole blocks of every format

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


# Before which release the flag was spelled otherwise, or was not there. Source: vLLM pull
# requests 2279 (0.3.0: `auto` and `fp8_e5m2`) and 3290 (0.4.1: `fp8`); SGLang's server_args.py.
_EIGHT_BITS_BEFORE: dict[str, tuple[tuple[tuple[int, ...], str | None], ...]] = {
    "vllm": (((0, 3), None), ((0, 4, 1), "--kv-cache-dtype fp8_e5m2")),
    "sglang": (((0, 3), None), ((0, 4, 2), "--kv-cache-dtype fp8_e5m2")),
}


def eight_bit_flag(engine: str | None, version: str | None) -> str | None:
    """Return the option that stores keys and values in 8 bits; None where the release has none.

    Args:
        engine: As for `engine_flag`.
        version: As logged; one that is not known counts as the newest.
    """
    numbers = None if version is None else version_numbers(version)
    before = _EIGHT_BITS_BEFORE.get(engine or "vllm", ()) if numbers is not None else ()
    older = next((flag for release, flag in before if (numbers or ()) < release), _NOT_OLDER)
    return engine_flag(engine, "eight bits") if older == _NOT_OLDER else older


def eight_bit_share(engine: str | None) -> Fraction | None:
    """Return what keys and values take in 8 bits, scales included, of what they take in 16.

    None where the engine has no flag for it.

    Example: 1/2 of vLLM's fp8, 17/32 of llama.cpp's q8_0.
    """
    flag = engine_flag(engine, "eight bits")
    if flag is None:
        return None
    name = flag.split()[-1]  # each such flag ends with its format
    in_sixteen = find_kv_format("bf16").head_bytes(_HEAD_DIM)
    return Fraction(find_kv_format(name).head_bytes(_HEAD_DIM), in_sixteen)
