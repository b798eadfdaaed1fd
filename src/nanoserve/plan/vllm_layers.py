"""Which layers' tokens vLLM keeps, by version: before groups, before latents, and for chunks."""

from dataclasses import replace

from nanoserve.plan.kv_groups import without_windows
from nanoserve.spec.model_shape import AttentionShape, LayerShape, ModelShape

_LATENTS_SINCE = (0, 7, 1)  # pull request 12601; before, each head's K and V
_GROUPS_SINCE = (0, 10)  # pull request 17996; before, every layer kept every token
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


def _without_latents(shape: ModelShape) -> ModelShape:
    """Return the model with K and V of each head in place of latents."""

    def widened(layer: LayerShape) -> LayerShape:
        if layer.attention is None or layer.attention.latent is None:
            return layer
        heads = layer.attention.num_heads
        full = AttentionShape("full", heads, heads, _PADDED_HEAD, _PADDED_HEAD)
        return replace(layer, attention=full)

    return replace(shape, layers=tuple(map(widened, shape.layers)))
