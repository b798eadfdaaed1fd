"""`PlannedModel`: what a plan must know of a model, wherever it was read from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.quant_spec import FULL_PRECISION, WeightFormat

if TYPE_CHECKING:  # 15 ms that other models do without
    from nanoserve.spec.gguf_file import GGUFFile

WeightSource = Literal["config", "safetensors headers", "GGUF header"]


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model that memory is planned for.

    Attributes:
        name: For people and for commands: a hub id, or a path.
        shape: Its layers and weights.
        weight_format: How the checkpoint stores its weights.
        weight_source: What the bytes of the weights follow from.
        file_bytes: Bytes of all tensors that are loaded, where headers were read; else None.
        quant_method: As the config spells it; None where it says nothing.
        kv_cache_dtype: What the checkpoint asks of the KV cache; None where nothing.
        config: The object in config.json, for our own engine; None for a GGUF file.
        path: Where it lies; None for a preset.
        kept: Patterns of single modules that the checkpoint leaves in 16 bits.
        gguf: The header of a GGUF file, for our own engine; None for other models.
    """

    name: str
    shape: ModelShape
    weight_format: WeightFormat = FULL_PRECISION
    weight_source: WeightSource = "config"
    file_bytes: int | None = None
    quant_method: str | None = None
    kv_cache_dtype: str | None = None
    config: Mapping[str, Any] | None = None
    path: str | None = None
    kept: tuple[str, ...] = ()
    gguf: "GGUFFile | None" = None
