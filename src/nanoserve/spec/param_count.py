"""Parameters of a model by group, from its shape alone. Knows no bytes: see `plan`."""

from collections import Counter
from dataclasses import dataclass, fields

from nanoserve.spec.model_shape import ModelShape
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.spec_shape import shape_of_spec


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by group.

    Attributes:
        embedding: Tables of tokens and positions.
        attention: Projections of attention, indexers included.
        mlp: Dense feed-forward parts, shared experts included.
        norms: All norms but the encoder's.
        head: Output head; 0 where it is the embedding.
        experts: Routed experts.
        router: What chooses experts.
        state: Recurrent mixers.
        encoder: An encoder, whole.
        tower: Vision towers and their projectors, whole.
        other: What only one family has.
    """

    embedding: int = 0
    attention: int = 0
    mlp: int = 0
    norms: int = 0
    head: int = 0
    experts: int = 0
    router: int = 0
    state: int = 0
    encoder: int = 0
    tower: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """All parameters; a tied head counts once."""
        return sum(getattr(self, field.name) for field in fields(self))


def count_parameters(model: ModelSpec | ModelShape) -> ParameterCount:
    """Count the parameters of a model, all of which are resident.

    Example: Llama 3.1 8B has 8,030,261,248.
    """
    totals: Counter[str] = Counter()
    for weight in _shape(model).all_weights:
        totals[weight.group] += weight.num_params
    return ParameterCount(**totals)


def count_active_parameters(model: ModelSpec | ModelShape) -> ParameterCount:
    """Count the parameters that one token visits: of the experts only those chosen for it.

    Example: Mixtral 8x7B has 46,702,792,704 parameters, of which 12,879,925,248 are active.
    """
    totals: Counter[str] = Counter()
    for weight in _shape(model).all_weights:
        totals[weight.group] += weight.num_active_params
    return ParameterCount(**totals)


def _shape(model: ModelSpec | ModelShape) -> ModelShape:
    return shape_of_spec(model) if isinstance(model, ModelSpec) else model
