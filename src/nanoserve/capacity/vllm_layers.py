"""What vLLM caches of each layer, by version: before groups and latents, for chunks, of states."""

from dataclasses import replace

from nanoserve.capacity.kv_groups import without_windows
from nanoserve.spec.model_shape import AttentionShape, LayerShape, ModelShape

_LATENTS_SINCE = (0, 7, 1)  # pull request 12601; before, each head's K and V
_GROUPS_SINCE = (0, 10)  # pull request 17996; before, every layer kept every token
# Prefix caching of hybrid models is off until then and on since, "align" for all of them. Source:
# pull requests 23716 (off) and 50991 (on, first in 0.28.0).
_ALIGNED_SINCE = (0, 28)
# Every recorded boot of a delta net since then holds two states: as --enable-prefix-caching does.
_DELTA_NETS_ALIGNED_SINCE = (0, 21)
_PADDED_HEAD = 256  # what heads of 192 were padded to then


def as_vllm_caches(shape: ModelShape, version: tuple[int, ...] | None) -> ModelShape:
    """Return a model as a version of vLLM caches it.

    Before 0.7.1 latents are kept as K and V of every head. Before 0.10, and wherever layers
    attend in chunks, every layer keeps every token.

    Args:
        shape: The model, or the layers of one stage.
        version: As numbers; None for the newest.
    """
    if version is not None and version < _LATENTS_SINCE:
        shape = _without_latents(shape)
    kinds = {layer.attention.kind for layer in shape.layers if layer.attention is not None}
    if "chunked" in kinds or (version is not None and version < _GROUPS_SINCE):
        return without_windows(shape)
    return shape


def states_per_request(shape: ModelShape, version: tuple[int, ...] | None) -> int:
    """Return the states that one request holds in each recurrent layer, without guessed tokens.

    One is enough to decode. With prefix caching aligned to blocks vLLM keeps the last at a
    block's end beside it.

    Source: vLLM v1/kv_cache_interface.py, `MambaSpec.max_memory_usage_bytes`.

    Args:
        shape: The model.
        version: As numbers; None for the newest.

    Example: Qwen3.6-35B-A3B at 32,768 tokens logs 17.11 requests in 13.1 GiB: 2 states each;
    with one it would be 18.57.
    """
    kinds = {layer.state.kind for layer in shape.layers if layer.state is not None}
    is_delta_net = "gated_delta_net" in kinds
    since = _DELTA_NETS_ALIGNED_SINCE if is_delta_net else _ALIGNED_SINCE
    has_attention = any(layer.attention is not None for layer in shape.layers)
    return 2 if kinds and has_attention and (version is None or version >= since) else 1


def _without_latents(shape: ModelShape) -> ModelShape:
    """Return the model with K and V of each head in place of latents."""

    def widened(layer: LayerShape) -> LayerShape:
        if layer.attention is None or layer.attention.latent is None:
            return layer
        heads = layer.attention.num_heads
        full = AttentionShape("full", heads, heads, _PADDED_HEAD, _PADDED_HEAD)
        return replace(layer, attention=full)

    return replace(shape, layers=tuple(map(widened, shape.layers)))
