"""A planned model as our own decoder needs it, if it serves it at all."""

from nanoserve.spec.gguf_spec import spec_from_gguf
from nanoserve.spec.hf_config import spec_from_hf_config
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.planned_model import PlannedModel


def served_spec(model: PlannedModel) -> ModelSpec:
    """Return the model as our own decoder needs it.

    Raises:
        UnsupportedModelError: The decoder does not serve it; says what is in the way.
        CorruptFileError: A key is missing or out of bounds.
    """
    if model.gguf is not None:
        return spec_from_gguf(model.gguf)
    return spec_from_hf_config(model.config or {}, model.name)
