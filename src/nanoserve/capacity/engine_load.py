"""From a model's shape, a card and the limits of serving to what an engine runs on one GPU.

Does no arithmetic on memory: `engine_memory` takes the load apart.
"""

from dataclasses import dataclass

from nanoserve.capacity.attention_workspace import NO_WORKSPACE, attention_workspace
from nanoserve.capacity.engine_memory import EngineLoad
from nanoserve.capacity.engine_profile import EngineProfile
from nanoserve.spec.gpu_spec import GpuSpec
from nanoserve.spec.model_shape import MlpShape, ModelShape
from nanoserve.units import ceil_div

_FLASH_CAPABILITY = 8.0
_ROCM_TARGET = "gfx"
_FAST_LINK = 300e9  # bytes a second; a bridge between two desktop cards is slower


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """What an engine is told to serve.

    Attributes:
        max_num_seqs: Slots.
        max_num_batched_tokens: Token budget of a step.
        max_model_len: Longest request.
        tensor_parallel: GPUs that share each layer.
        is_eager: Whether no step is recorded.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    tensor_parallel: int = 1
    is_eager: bool = False


def engine_load(
    shape: ModelShape, profile: EngineProfile, limits: ServingLimits, gpu: GpuSpec | None = None
) -> EngineLoad:
    """Return what an engine runs of a model on one GPU.

    Args:
        shape: The model.
        profile: Of the engine; says whether it has latent attention's workspace.
        limits: What it serves.
        gpu: The card; None for one with a fast link and without FlashAttention, which is the
            cautious reading.

    Example: Qwen3 30B A3B has 8 experts of 768 at once, 6,144, and keeps 8 * (2,048 + 768)
    values of a token in their workspace.
    """
    tp = limits.tensor_parallel
    mlps = [layer.mlp for layer in shape.layers if layer.mlp]
    has_workspace = profile.engine == "vllm" and profile.is_chunked
    return EngineLoad(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        active_intermediate_size=ceil_div(max(map(active_width, mlps), default=0), tp),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        tensor_parallel=tp,
        is_eager=limits.is_eager,
        expert_values_per_token=max((_kept(mlp, shape, tp) for mlp in mlps), default=0),
        sees_images=_sees_images(shape),
        has_fast_link=gpu is None or gpu.link >= _FAST_LINK,
        has_flash_attention=gpu is not None and _has_flash_attention(gpu),
        num_layers=len(shape.layers),
        is_rocm=gpu is not None and gpu.compute_capability.startswith(_ROCM_TARGET),
        workspace=attention_workspace(shape, limits.max_model_len, limits.max_num_seqs, tp)
        if has_workspace
        else NO_WORKSPACE,
    )


def active_width(mlp: MlpShape) -> int:
    """Return the width a token goes through: of its experts together, and what all share."""
    experts = max(1, mlp.num_experts_per_token)
    return mlp.intermediate_size * experts + mlp.shared_intermediate_size


def _kept(mlp: MlpShape, shape: ModelShape, tp: int) -> int:
    """Return the values of a token in the experts' workspace.

    Source: vLLM fused_moe: caches 1 and 3 share max(2 I, h), cache 2 is I, for each expert.
    """
    width = ceil_div(mlp.intermediate_size, tp)
    return mlp.num_experts_per_token * (max(2 * width, shape.hidden_size) + width)


def _sees_images(shape: ModelShape) -> bool:
    is_counted = any(weight.group == "tower" for weight in shape.weights)
    return is_counted or "vision" in shape.uncounted


def _has_flash_attention(gpu: GpuSpec) -> bool:
    try:
        return float(gpu.compute_capability) >= _FLASH_CAPABILITY
    except ValueError:
        return False
