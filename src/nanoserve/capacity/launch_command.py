"""The command that starts an engine as planned: one small function for each engine's flags.

Only flags that differ from the engine's defaults, or that the plan stands on, are given.
"""

import shlex
from collections.abc import Callable

from nanoserve.capacity.engine_formats import kv_flag_value
from nanoserve.capacity.plan_choices import PlanChoices
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.spec.model_dir import PRESETS
from nanoserve.spec.quant_spec import WeightFormat

Flags = list[str]

# What vLLM and SGLang quantise while they load; other formats need a checkpoint that has them.
# Until then vLLM had no command of its own: pull request 5090, in 0.5.2; the rules change in 0.5.4.
_SERVE_SINCE = (0, 5, 4)
_BEFORE_SERVE = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model"]
_ONLINE = {"fp8": "fp8", "bnb-4bit": "bitsandbytes"}


def launch_command(
    query: PlanQuery, choices: PlanChoices, max_model_len: int, max_num_seqs: int
) -> str:
    """Return the command, ready to paste.

    Args:
        query: What was asked.
        choices: What it was resolved to.
        max_model_len: Longest request that was planned.
        max_num_seqs: Requests at once to admit.
    """
    make = _COMMANDS[query.profile.engine]
    return shlex.join(make(query, choices, max_model_len, max_num_seqs))


def command_notes(query: PlanQuery) -> tuple[str, ...]:
    """Return what the command cannot say: a checkpoint that has to be found."""
    asked = query.weight_format
    engine = query.profile.engine
    if asked is None or asked.name == query.model.weight_format.name or _is_half(asked):
        return ()
    if engine == "nanoserve":  # packs as it loads
        return ()
    if engine in ("vllm", "sglang") and asked.name in _ONLINE:
        return ()
    return (f"the command needs a checkpoint of this model in {asked.name}: put its name there",)


def _is_half(stored: WeightFormat) -> bool:
    return stored.name == "bf16"


def _vllm(query: PlanQuery, choices: PlanChoices, max_model_len: int, max_num_seqs: int) -> Flags:
    start = ["vllm", "serve"] if query.profile.since >= _SERVE_SINCE else _BEFORE_SERVE
    flags = [*start, query.model.path or query.model.name]
    flags += _ranks("--tensor-parallel-size", "--pipeline-parallel-size", choices)
    flags += ["--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs)]
    if query.max_num_batched_tokens is not None:
        flags += ["--max-num-batched-tokens", str(query.max_num_batched_tokens)]
    if query.utilization is not None:
        flags += ["--gpu-memory-utilization", f"{query.utilization:g}"]
    flags += _kv_flag("--kv-cache-dtype", query)
    flags += _online("--quantization", query)
    return [*flags, "--enforce-eager"] if query.is_eager else flags


def _sglang(query: PlanQuery, choices: PlanChoices, max_model_len: int, max_num_seqs: int) -> Flags:
    flags = ["python", "-m", "sglang.launch_server"]
    flags += ["--model-path", query.model.path or query.model.name]
    flags += _ranks("--tp-size", "--pp-size", choices)
    flags += ["--context-length", str(max_model_len), "--max-running-requests", str(max_num_seqs)]
    if query.max_num_batched_tokens is not None:
        flags += ["--chunked-prefill-size", str(query.max_num_batched_tokens)]
    if query.utilization is not None:
        flags += ["--mem-fraction-static", f"{query.utilization:g}"]
    flags += _kv_flag("--kv-cache-dtype", query)
    flags += _online("--quantization", query)
    return [*flags, "--disable-cuda-graph"] if query.is_eager else flags


def _tensorrt(
    query: PlanQuery, choices: PlanChoices, max_model_len: int, max_num_seqs: int
) -> Flags:
    flags = ["trtllm-serve", query.model.path or query.model.name]
    flags += _ranks("--tp_size", "--pp_size", choices)
    flags += ["--max_seq_len", str(max_model_len), "--max_batch_size", str(max_num_seqs)]
    if query.max_num_batched_tokens is not None:
        flags += ["--max_num_tokens", str(query.max_num_batched_tokens)]
    if query.utilization is not None:
        flags += ["--kv_cache_free_gpu_memory_fraction", f"{query.utilization:g}"]
    return flags + _kv_flag("--kv_cache_dtype", query)


def _llama_cpp(
    query: PlanQuery, choices: PlanChoices, max_model_len: int, max_num_seqs: int
) -> Flags:
    """llama.cpp's context is all slots' together."""
    is_file = query.model.quant_method == "gguf" and query.model.path is not None
    path = query.model.path if is_file and query.model.path else "MODEL.gguf"
    slots = max(1, min(max_num_seqs, choices.max_num_seqs))
    per_slot = min(max_model_len, choices.workload.longest_stated)
    flags = ["llama-server", "--model", path, "--n-gpu-layers", "999"]
    if choices.pp > 1:  # without the second, what happens to be free on each decides
        flags += ["--split-mode", "layer", "--tensor-split", ",".join("1" * choices.pp)]
    flags += ["--ctx-size", str(per_slot * slots), "--parallel", str(slots)]
    if query.max_num_batched_tokens is not None:
        flags += ["--ubatch-size", str(query.max_num_batched_tokens)]
    keys = _kv_flag("--cache-type-k", query)
    return flags + keys + _kv_flag("--cache-type-v", query)


def _nanoserve(
    query: PlanQuery, choices: PlanChoices, max_model_len: int, max_num_seqs: int
) -> Flags:
    from nanoserve.capacity.own_formats import (  # other engines do without
        own_kv_cache_dtype,
        own_quantization,
    )

    del choices
    flags = ["nanoserve", "serve", _own_name(query)]
    if query.gpu.is_host:
        flags += ["--device", "cpu"]
    flags += ["--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs)]
    if query.max_num_batched_tokens is not None:
        flags += ["--max-num-batched-tokens", str(query.max_num_batched_tokens)]
    if query.utilization is not None:
        flags += ["--gpu-memory-utilization", f"{query.utilization:g}"]
    quantization = own_quantization(query.weight_format, query.gpu)
    flags += [] if quantization == "none" else ["--quantization", quantization]
    kv_cache_dtype = own_kv_cache_dtype(query.kv_cache_dtype, query.gpu)
    flags += [] if kv_cache_dtype == "auto" else ["--kv-cache-dtype", kv_cache_dtype]
    return [*flags, "--no-cuda-graphs"] if query.is_eager else flags


def _own_name(query: PlanQuery) -> str:
    """Return what the server is called with: a preset by its name, wherever it lies."""
    name = query.model.name
    return name if name in PRESETS else query.model.path or name


_COMMANDS: dict[str, Callable[[PlanQuery, PlanChoices, int, int], Flags]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt,
    "llama.cpp": _llama_cpp,
    "nanoserve": _nanoserve,
}


def _ranks(tp_flag: str, pp_flag: str, choices: PlanChoices) -> Flags:
    flags = [tp_flag, str(choices.tp)] if choices.tp > 1 else []
    return flags + ([pp_flag, str(choices.pp)] if choices.pp > 1 else [])


def _kv_flag(flag: str, query: PlanQuery) -> Flags:
    value = kv_flag_value(query.profile.engine, query.kv_cache_dtype)
    return [] if value is None else [flag, value]


def _online(flag: str, query: PlanQuery) -> Flags:
    asked = query.weight_format
    if asked is None or asked.name not in _ONLINE or query.model.quant_method is not None:
        return []
    return [flag, _ONLINE[asked.name]]
