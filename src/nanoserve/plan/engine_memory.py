"""What an engine will take beside the weights, and what it leaves for the KV pool.

Applies a profile to a load; every figure carries an interval. Knows no model's shape but
the four sizes a step's peak depends on, and no block: `kv_plan` divides the pool.
"""

from dataclasses import dataclass

from nanoserve.plan.engine_profile import EngineProfile
from nanoserve.plan.interval import Interval
from nanoserve.units import GIB, MIB

_UNCHUNKED_LIMIT = 32_768  # V0 splits prompts on its own above it, into steps of 512 tokens
_UNCHUNKED_STEP = 512
_SGLANG_FLOOR_BYTES = 10 * GIB
_SGLANG_LARGE_BYTES = 60 * GIB


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine runs, on one GPU.

    Attributes:
        vocab_size: Words of the vocabulary.
        hidden_size: Width of the residual.
        active_intermediate_size: Width of the MLP a token goes through on this rank: of an
            MoE, its experts' widths together.
        max_num_seqs: Slots.
        max_num_batched_tokens: Token budget of a step.
        max_model_len: Longest request.
        value_bytes: Bytes of an activation.
        tensor_parallel: GPUs that share each layer.
        is_eager: Whether no step is recorded.
    """

    vocab_size: int
    hidden_size: int
    active_intermediate_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    value_bytes: int = 2
    tensor_parallel: int = 1
    is_eager: bool = False


def step_tokens(profile: EngineProfile, load: EngineLoad) -> int:
    """Return the tokens of the step that the engine profiles."""
    if profile.is_chunked:
        return load.max_num_batched_tokens
    if load.max_model_len > _UNCHUNKED_LIMIT:
        return _UNCHUNKED_STEP
    return max(load.max_model_len, load.max_num_batched_tokens)


def activation_bytes(profile: EngineProfile, load: EngineLoad) -> Interval:
    """Return the profiled step's peak: the sampler's or the MLP's, which never live at once.

    sampler = fixed + f * slots * vocabulary; MLP = tokens * value_bytes * 3 * (I + h).

    Source: fitted on the H100 boots that llm-d publishes and held against other boots;
    vision towers, MoE workspaces and linear attention take more and are not in it.
    """
    fixed = Interval.scaled(profile.fixed_gib, GIB)
    sampler = fixed + Interval.scaled(profile.sampler_factors, load.max_num_seqs * load.vocab_size)
    width = 3 * (load.active_intermediate_size + load.hidden_size)
    rows = step_tokens(profile, load) * load.value_bytes * width
    return sampler.or_more(Interval.scaled(profile.mlp_factors, rows))


def non_torch_bytes(profile: EngineProfile, tensor_parallel: int = 1) -> Interval:
    """Return what lies outside the allocator: driver context, communication buffers."""
    factors = profile.lone_gib if tensor_parallel == 1 else profile.peer_gib
    return Interval.scaled(factors, GIB)


def graph_bytes(profile: EngineProfile, is_eager: bool = False) -> Interval:
    """Return what recorded steps take, in the budget or outside it."""
    if is_eager or profile.graphs == "none":
        return Interval.exactly(0)
    return Interval.scaled(profile.graph_gib, GIB)


def pool_bytes(
    profile: EngineProfile,
    requested_bytes: int,
    weight_bytes: int,
    activation: Interval,
    non_torch: Interval,
    graph_estimate: Interval | None = None,
) -> Interval:
    """Return what a vLLM-like engine leaves for the pool.

    requested - weights - activation - non-torch, and the graphs' estimate where the version
    takes that off as well.

    Args:
        profile: Says whether the estimate comes off.
        requested_bytes: Utilization times the total.
        weight_bytes: Of this rank.
        activation: The profiled step's peak.
        non_torch: Held outside the allocator.
        graph_estimate: Of recorded steps; None takes nothing off.
    """
    held = activation + non_torch
    if graph_estimate is not None and profile.graphs == "estimate in budget":
        held += graph_estimate
    if graph_estimate is not None and profile.graphs == "estimate perhaps in budget":
        held += Interval(0, 0, graph_estimate.mid)
    return held.taken_from(requested_bytes - weight_bytes)


def sglang_fraction(
    total_bytes: int,
    chunked_prefill_size: int = 8192,
    cuda_graph_max_bs: int = 160,
    num_gpus: int = 1,
    is_mla: bool = False,
) -> float:
    """Return SGLang's default `mem_fraction_static`.

    reserved MiB = 512 + 1.5 * max(chunk, 2048) + 1024 * gpus / 8 + 2 * graph rows, 1.5 GiB
    more for latent attention, and at least 10 GiB on a card of over 60 GiB.

    Source: SGLang `server_args.py`, `_handle_gpu_memory_settings`.
    """
    reserved_mib = 512 + 1.5 * max(chunked_prefill_size, 2048)
    reserved_mib += 1024 * num_gpus / 8 + 2 * cuda_graph_max_bs
    reserved = int(reserved_mib * MIB) + (3 * GIB // 2 if is_mla else 0)
    if total_bytes > _SGLANG_LARGE_BYTES:
        reserved = max(reserved, _SGLANG_FLOOR_BYTES)
    return max(0.0, (total_bytes - reserved) / total_bytes)


def sglang_pool_bytes(free_before: int, free_after_load: int, fraction: float) -> int:
    """Return SGLang's pool: what is free after loading, less the share kept free of before.

    Example: 63.72 GiB of 78.8 GiB at 0.88 leave 63.72 - 0.12 * 78.8 = 54.26 GiB, as logged
    by 0.4.1 on an H100.

    Source: SGLang `model_runner.py`, `profile_max_num_token`.
    """
    return int(free_after_load - (1 - fraction) * free_before)


def tensorrt_pool_bytes(
    profile: EngineProfile, free_after_load: int, fraction: float | None
) -> int:
    """Return TensorRT-LLM's pool: a share of what is free once engine and context are there."""
    share = profile.utilization if fraction is None else fraction
    assert share is not None, "TensorRT-LLM has a default share"  # noqa: S101
    return int(share * free_after_load)
