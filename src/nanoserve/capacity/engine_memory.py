"""What an engine will take beside the weights, and what it leaves for the KV pool.

Applies a profile to a load; every figure carries an interval. Knows no model's shape but
the four sizes a step's peak depends on, and no block: `kv_plan` divides the pool.
"""

from dataclasses import dataclass

from nanoserve.capacity.attention_workspace import NO_WORKSPACE, AttentionWorkspace
from nanoserve.capacity.engine_profile import EngineProfile, Factors
from nanoserve.capacity.interval import Interval
from nanoserve.units import GIB, MIB

_UNCHUNKED_LIMIT = 32_768  # V0 splits prompts on its own above it, into steps of 512 tokens
_SPLIT_STEP = 512
_WIDER_SPLIT_SINCE = (0, 7)  # the token budget, 2,048
_SGLANG_FLOOR_BYTES = 10 * GIB
_SGLANG_LARGE_BYTES = 60 * GIB
# Under so many GiB: tokens of a chunk, and rows of the largest graph on under 4 ranks and on more.
_SGLANG_BATCHES = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
)
_SGLANG_LARGEST_BATCH = (16_384, 512)


# What is left for the pool, in GiB, to the slots that Unsloth then asks vLLM for.
_UNSLOTH_SLOTS = (
    (2, 128),
    (4, 160),
    (8, 192),
    (12, 224),
    (16, 256),
    (24, 288),
    (40, 320),
    (48, 226),
    (80, 368),
)
_UNSLOTH_MOST_SLOTS = 400
_HIP_GIB: Factors = (0.2, 0.42, 1.4)
_CONTEXT_SHARE = 100  # of the card, and at most so much
_MOST_CONTEXT_BYTES = GIB // 2


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
        expert_values_per_token: Values that a token's experts keep in their workspace.
        sees_images: Whether the model has an encoder whose largest image is profiled.
        has_fast_link: Whether the GPUs that share a layer have NVLink or the like.
        has_flash_attention: Whether the GPU is known to run FlashAttention (compute 8.0).
        workspace: Of latent attention, where the engine has one.
        num_layers: Layers, which every recorded step runs.
        is_rocm: Whether the GPU is AMD's.
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
    expert_values_per_token: int = 0
    sees_images: bool = False
    has_fast_link: bool = True
    has_flash_attention: bool = False
    workspace: AttentionWorkspace = NO_WORKSPACE
    num_layers: int = 0
    is_rocm: bool = False


def step_tokens(profile: EngineProfile, load: EngineLoad) -> int:
    """Return the tokens of the step that the engine profiles."""
    if profile.is_chunked:
        return load.max_num_batched_tokens
    if _is_split(profile, load):
        return _SPLIT_STEP if profile.since < _WIDER_SPLIT_SINCE else load.max_num_batched_tokens
    return max(load.max_model_len, load.max_num_batched_tokens)


def activation_bytes(profile: EngineProfile, load: EngineLoad) -> Interval:
    """Return the profiled step's peak: sampler, MLP or encoder, which never live at once.

    sampler = f * rows * vocabulary + tokens * value_bytes * h, and the experts' workspace where
    it stays allocated; MLP = tokens * value_bytes * 3 * (I + h); latent attention's context may
    be more than either. Beside them stand a fixed part and what latent attention keeps.

    f counts the copies of the logits: 2 bytes as computed, 4 as float32, 12 sorted with their
    indices and 20 while sorting are 38; without sorting 4 of probabilities and 4 of noise
    make 14, and half a byte of masks.

    Source: vLLM v1/sample/sampler.py and ops/topk_topp_sampler.py; held against the H100 boots
    that llm-d publishes.
    Example: Llama 3.1 8B with 1,024 rows and 8,192 tokens takes 4.76 GiB by sorting (0.11) and
    1.89 GiB without (0.16); both were measured.
    """
    tokens = step_tokens(profile, load)
    rows = min(load.max_num_seqs, tokens)
    kept = tokens * load.value_bytes * load.hidden_size
    if profile.keeps_workspace:
        kept += tokens * load.value_bytes * load.expert_values_per_token
    sampler = Interval.scaled(sampler_factors(profile, load), rows * load.vocab_size)
    width = 3 * (load.active_intermediate_size + load.hidden_size)
    mlp = Interval.scaled(profile.mlp_factors, tokens * load.value_bytes * width)
    context = Interval.exactly(load.workspace.peak_bytes)
    text = (sampler + Interval.exactly(kept)).or_more(mlp).or_more(context)
    text += Interval.exactly(load.workspace.kept_bytes)
    encoder = Interval.scaled(profile.encoder_gib, GIB if load.sees_images else 0)
    return (text + Interval.scaled(profile.fixed_gib, GIB)).or_more(encoder)


def sampler_factors(profile: EngineProfile, load: EngineLoad) -> Factors:
    """Return the profile's factors; none where V0 splits prompts on its own.

    Measured: 0.06 and 0.22 GiB for Llama 3.1 8B on cards with FlashAttention (0.6.4 and 0.7),
    its MLP's step alone; cards without it took the sampler's 1.2 GiB. Why is not known.
    """
    is_split = not profile.is_chunked and _is_split(profile, load)
    return (0.0, 0.0, 38.0) if is_split and load.has_flash_attention else profile.sampler_factors


def _is_split(profile: EngineProfile, load: EngineLoad) -> bool:
    """Whether V0 splits the longest prompt on its own, as it does of models without images.

    Source: vLLM pull requests 6666 (0.5.4) and 8425, which leaves models with images out.
    Example: before them LLongOrca 7B was profiled on its whole 65,536 tokens, 6.6 GiB.
    """
    is_long = load.max_model_len > _UNCHUNKED_LIMIT
    return profile.splits_long_prompts and is_long and not load.sees_images


def non_torch_bytes(
    profile: EngineProfile,
    tensor_parallel: int = 1,
    has_fast_link: bool = True,
    *,
    is_rocm: bool = False,
) -> Interval:
    """Return what lies outside the allocator: driver context, communication buffers.

    Buffers for all-reduce over a fast link take 2 GiB of each GPU, without one a tenth. HIP
    holds 0.46 and 0.53 GiB on single cards where CUDA boots of the same releases hold 0.07.
    """
    if tensor_parallel == 1:
        lone = Interval.scaled(profile.lone_gib, GIB)
        return lone + Interval.scaled(_HIP_GIB, GIB) if is_rocm else lone
    factors = profile.peer_gib if has_fast_link else profile.slow_peer_gib
    return Interval.scaled(factors, GIB)


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


def context_bytes(total_bytes: int) -> int:
    """Return what the driver's context takes of a card before anything is loaded.

    A hundredth of it, at most half a GiB: 0.51 GiB of an H100, 0.41 of a 3090 that drives no
    screen, 0.23 of an L4 and 0.11 to 0.15 of a T4 were gone at vLLM's start.
    """
    return min(total_bytes // _CONTEXT_SHARE, _MOST_CONTEXT_BYTES)


def unsloth_slots(room_bytes: int) -> int:
    """Return the slots that Unsloth asks vLLM for, by what is left beside the weights.

    Source: unsloth_zoo `vllm_utils.py`, `load_vllm`.
    Example: 45 GiB of an 80 GB card at 0.7 beside phi-4 in 4 bits are under 48: 226; under 40
    are 320.
    """
    for gib, slots in _UNSLOTH_SLOTS:
        if room_bytes <= gib * GIB:
            return slots
    return _UNSLOTH_MOST_SLOTS


def sglang_batch(total_bytes: int, tensor_parallel: int) -> tuple[int, int]:
    """Return SGLang's default tokens of a prefill chunk, and rows of its largest graph.

    Example: a 24 GB card is given chunks of 2,048, an 80 GB card of 8,192.

    Source: SGLang `server_args.py`, `_handle_gpu_memory_settings`.
    """
    for gib, chunk, few_ranks, many_ranks in _SGLANG_BATCHES:
        if total_bytes < gib * GIB:
            return chunk, few_ranks if tensor_parallel < 4 else many_ranks
    return _SGLANG_LARGEST_BATCH


def sglang_fraction(
    total_bytes: int,
    chunked_prefill_size: int | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    *,
    is_mla: bool = False,
) -> float:
    """Return SGLang's default `mem_fraction_static`, to three digits as it rounds it.

    reserved MiB = 512 + 1.5 * max(chunk, 2048) + 1024 * gpus / 8 + 2 * graph rows, 1.5 GiB
    more for latent attention, and at least 10 GiB on a card of over 60 GiB. Chunk and rows
    follow the card's memory where they are not set: `sglang_batch`.

    Example: 24 GiB less 512 + 3,072 + 128 + 48 MiB are a share of 0.847.

    Source: SGLang `server_args.py`, `_handle_gpu_memory_settings`.
    """
    chunk, graph_rows = sglang_batch(total_bytes, tensor_parallel)
    num_gpus = tensor_parallel * pipeline_parallel
    reserved_mib = 512 + 1.5 * max(chunked_prefill_size or chunk, 2048)
    reserved_mib += 1024 * num_gpus / 8 + 2 * graph_rows
    reserved = int(reserved_mib * MIB) + (3 * GIB // 2 if is_mla else 0)
    if total_bytes > _SGLANG_LARGE_BYTES:
        reserved = max(reserved, _SGLANG_FLOOR_BYTES)
    return max(0.0, round((total_bytes - reserved) / total_bytes, 3))


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
