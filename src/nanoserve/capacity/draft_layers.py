"""Layers that guess ahead (multi-token prediction): what they would take, were they loaded.

Engines load them for speculative decoding alone, so no plan counts them; it says their bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nanoserve.capacity.plan_choices import PlanChoices
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.capacity.rank_weights import heaviest_rank_bytes
from nanoserve.spec.model_shape import ModelShape, Weight
from nanoserve.spec.param_count import count_parameters
from nanoserve.units import format_bytes

_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_MOST_LAYERS = 16  # more is no count of such layers
# Families whose draft layer is a layer as the model's last, behind a projection of two inputs.
# Source: vLLM deepseek_mtp.py, glm4_moe_mtp.py, mimo_mtp.py and qwen3_next_mtp.py.
_LIKE_THE_LAST = frozenset(
    {
        "deepseek_v3",
        "deepseek_v32",
        "glm4_moe",
        "glm_moe_dsa",
        "mimo",
        "qwen3_next",
        "qwen3_5_text",
        "qwen3_5_moe_text",
    }
)


@dataclass(frozen=True, slots=True)
class DraftLayers:
    """Layers that guess ahead.

    Attributes:
        num_layers: How many the config says there are.
        num_params: Their parameters; None where the family's are not known. Embedding and head
            are the model's.
        device_bytes: What each GPU of the last stage would hold of them; None likewise.
    """

    num_layers: int
    num_params: int | None
    device_bytes: int | None

    @property
    def words(self) -> str:
        """What they are and take, in a sentence."""
        layers = "1 layer" if self.num_layers == 1 else f"{self.num_layers} layers"
        text = f"not counted: {layers} of multi-token prediction, loaded only to guess ahead"
        if self.num_params is None or self.device_bytes is None:
            return text
        size = format_bytes(self.device_bytes)
        return f"{text}: {self.num_params / 1e9:.2f} B parameters, {size} of each GPU"


def draft_layers(query: PlanQuery, choices: PlanChoices) -> DraftLayers | None:
    """Return the layers that guess ahead; None where the config has none.

    Example: DeepSeek-V3 has one, of 11.61 B parameters: attention, 257 experts, and a projection
    of 2 * 7,168 onto 7,168.
    """
    num_layers = next(_counts(query.model.config or {}), 0)
    if not num_layers:
        return None
    shape = query.model.shape
    if shape.model_type not in _LIKE_THE_LAST:
        return DraftLayers(num_layers, None, None)
    drafts = _as_model(shape, num_layers)
    num_bytes = heaviest_rank_bytes(drafts, choices.weight_format, choices.tp)
    return DraftLayers(num_layers, count_parameters(drafts).total, num_bytes)


def _counts(config: Mapping[str, Any]) -> Iterator[int]:
    sections = [config, *(value for value in config.values() if isinstance(value, dict))]
    for section in sections:
        for key in _KEYS:
            count = section.get(key)
            if isinstance(count, int) and 0 < count <= _MOST_LAYERS:
                yield count


def _as_model(shape: ModelShape, num_layers: int) -> ModelShape:
    """Return the draft layers as a model of their own, without embedding, head and rotary table."""
    last = next(layer for layer in reversed(shape.layers) if layer.attention is not None)
    size = shape.hidden_size
    beside = (
        Weight("other", size, 2 * size, num_layers),
        Weight("norms", size, copies=3 * num_layers),
    )
    return replace(shape, layers=(last,) * num_layers, weights=beside, max_position_embeddings=None)
