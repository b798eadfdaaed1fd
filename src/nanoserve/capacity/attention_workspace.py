"""What latent attention takes beside its cache in vLLM: buffers that stay, and the context's peak.

Pure arithmetic on a shape, for one rank. Which engine has them is the caller's to know.
"""

from dataclasses import dataclass

from nanoserve.spec.model_shape import AttentionShape, ModelShape

_MOST_CONTEXT_TOKENS = 64 * 1024
_FULL_REQUESTS = 8  # of the longest length that the buffer is tried to be made for
_PAGES_PER_SLOT = 4
_SPARSE_REQUESTS = 5
_VALUE_BYTES = 2


@dataclass(frozen=True, slots=True)
class AttentionWorkspace:
    """Workspace of a model's attention.

    Attributes:
        kept_bytes: Buffers that stay allocated.
        peak_bytes: What a context, projected up to all heads, takes in the profiled step.
    """

    kept_bytes: int = 0
    peak_bytes: int = 0


NO_WORKSPACE = AttentionWorkspace()


def attention_workspace(
    shape: ModelShape, max_model_len: int, max_num_seqs: int, tp: int = 1, block_size: int = 16
) -> AttentionWorkspace:
    """Return the workspace of a model's latent attention; nothing for other kinds.

    Args:
        shape: The model.
        max_model_len: Longest request served.
        max_num_seqs: Slots.
        tp: GPUs that share each layer, and so its heads.
        block_size: Tokens of a block.

    Source: vLLM v1/attention/backends/mla/common.py, `determine_chunked_prefill_workspace_size`
    and the profile run; flashmla_sparse.py, `get_prefill_workspace_size`.
    Example: DeepSeek-V3 at 163,840 tokens keeps 72 MiB and takes 0.5 GiB of each of 8 ranks;
    DeepSeek-V3.2, which reads tokens by an index, keeps 900 MiB and takes no more.
    """
    attention = next((one for one in _attentions(shape) if one.latent is not None), None)
    if attention is None or attention.latent is None:
        return NO_WORKSPACE
    width = (attention.latent.kv_lora_rank + attention.latent.rope_dim) * _VALUE_BYTES
    if any(one.index_dim for one in _attentions(shape)):
        return AttentionWorkspace(_SPARSE_REQUESTS * max_model_len * width)
    tokens = max(_FULL_REQUESTS * max_model_len, _PAGES_PER_SLOT * max_num_seqs * block_size)
    tokens = max(min(tokens, _MOST_CONTEXT_TOKENS), max_num_seqs * block_size)
    nope_dim = attention.head_dim - attention.latent.rope_dim
    up = (nope_dim + attention.v_head_dim) * max(1, attention.num_heads // tp) * _VALUE_BYTES
    return AttentionWorkspace(tokens * width, tokens * up)


def _attentions(shape: ModelShape) -> list[AttentionShape]:
    return [layer.attention for layer in shape.layers if layer.attention is not None]
