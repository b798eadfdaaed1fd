"""How tensor- and pipeline-parallel ranks divide a model: heads, weights, vocabulary, stages.

Pure arithmetic on shapes; the bytes of a cache are in `kv_layout`. The rules are those vLLM and
SGLang share, and the source is vLLM 0.32: `config/model.py` and `distributed/utils.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nanoserve.errors import OptionError
from nanoserve.spec.model_shape import LayerShape, ModelShape, Weight
from nanoserve.units import ceil_div, round_up

VOCAB_MULTIPLE = 64  # rows of a sharded embedding are padded to this before they are divided
_MOST_RANKS = 64  # the largest count offered where one is refused


def kv_heads_on_rank(num_kv_heads: int, tp: int) -> int:
    """Return the KV heads a rank keeps: past one head per rank they are replicated.

    Example: 8 KV heads are 1 on each of 8 ranks, and still 1 on each of 16.
    """
    return max(1, num_kv_heads // tp)


def groups_on_rank(num_groups: int, tp: int) -> int:
    """Return the groups of a Mamba-2 mixer on a rank; too few of them are replicated."""
    padded = num_groups if num_groups % tp == 0 else num_groups + tp - num_groups
    return padded // tp


def check_tp(shape: ModelShape, tp: int) -> None:
    """Refuse a number of ranks that does not divide the model, naming those that do.

    Raises:
        OptionError: `tp` is not one of `valid_tp`.
    """
    problem = _tp_problem(shape, tp)
    if problem is None:
        return
    would_do = ", ".join(map(str, valid_tp(shape)))
    message = (
        f"--tp {tp} does not divide this model: {problem}. "
        f"Up to {_MOST_RANKS} these do: {would_do}."
    )
    raise OptionError(message)


def valid_tp(shape: ModelShape, most: int = _MOST_RANKS) -> tuple[int, ...]:
    """Return the numbers of ranks, up to `most`, that divide the model."""
    return tuple(tp for tp in range(1, most + 1) if _tp_problem(shape, tp) is None)


def _tp_problem(shape: ModelShape, tp: int) -> str | None:
    """Return what stands in the way of `tp` ranks; None where nothing does."""
    if tp < 1:
        return "it is not at least 1"
    if round_up(shape.vocab_size, VOCAB_MULTIPLE) % tp:
        return (
            f"the padded vocabulary of {round_up(shape.vocab_size, VOCAB_MULTIPLE):,} is odd to it"
        )
    return next((problem for layer in set(shape.layers) if (problem := _odd_part(layer, tp))), None)


def _odd_part(layer: LayerShape, tp: int) -> str | None:
    for attention in filter(None, (layer.attention, layer.cross)):
        if attention.num_heads % tp:
            return f"a layer has {attention.num_heads} query heads"
        heads = attention.num_kv_heads
        if heads % tp and tp % heads:
            return f"a layer has {heads} KV heads"
    if layer.state is not None and layer.state.num_heads % tp:
        return f"a recurrent layer has {layer.state.num_heads} heads"
    if layer.mlp is not None and layer.mlp.intermediate_size % tp:
        return f"an MLP is {layer.mlp.intermediate_size} wide"
    return None


def params_on_rank(weight: Weight, num_kv_heads: int, tp: int) -> int:
    """Return the parameters of a weight that one of `tp` ranks holds.

    Args:
        weight: The weight.
        num_kv_heads: KV heads of its layer; used where it is divided with them.
        tp: Tensor-parallel ranks.
    """
    if weight.split == "none":
        return weight.num_params
    if weight.split == "vocab":
        return round_up(weight.rows, VOCAB_MULTIPLE) * weight.columns * weight.copies // tp
    if weight.split == "kv":
        return weight.num_params // num_kv_heads * kv_heads_on_rank(num_kv_heads, tp)
    return ceil_div(weight.num_params, tp)


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage.

    Attributes:
        first_layer: Number of its first layer.
        num_layers: Layers in it.
        num_params: Parameters that one of its ranks holds.
    """

    first_layer: int
    num_layers: int
    num_params: int


def plan_stages(shape: ModelShape, pp: int, tp: int = 1) -> tuple[Stage, ...]:
    """Divide the layers among `pp` stages; the fattest decides what fits.

    Layers left over go to the stages before the last, which has the head. The embedding is on
    the first stage, the head on the last; a tied head is a second copy there.

    Raises:
        OptionError: There are more stages than layers.

    Example: Llama 3.1 8B in bf16 on 4 stages is 4.23 GiB on the first, not a quarter, 3.74.
    """
    return tuple(
        Stage(part.first_layer, part.num_layers, part.rank_params(tp))
        for part in stage_weights(shape, pp)
    )


@dataclass(frozen=True, slots=True)
class StageWeights:
    """The weights of one pipeline stage, before its ranks divide them.

    Attributes:
        first_layer: Number of its first layer.
        num_layers: Layers in it.
        outside: Weights outside the layers.
        layers: The layers.
    """

    first_layer: int
    num_layers: int
    outside: tuple[Weight, ...]
    layers: tuple[LayerShape, ...]

    def rank_params(self, tp: int) -> int:
        """Return the parameters that one of `tp` ranks holds."""
        outside = sum(params_on_rank(weight, 1, tp) for weight in self.outside)
        return outside + _rank_params(self.layers, tp)


def stage_weights(shape: ModelShape, pp: int) -> tuple[StageWeights, ...]:
    """Divide the weights among stages; see `plan_stages`.

    Raises:
        OptionError: There are more stages than layers.
    """
    stages, first = [], 0
    for rank, size in enumerate(_stage_sizes(len(shape.layers), pp)):
        outside = _outside(shape, is_first=rank == 0, is_last=rank == pp - 1)
        layers = shape.layers[first : first + size]
        stages.append(StageWeights(first, size, tuple(outside), layers))
        first += size
    return tuple(stages)


def _stage_sizes(num_layers: int, pp: int) -> list[int]:
    if not 1 <= pp <= num_layers:
        message = f"--pp {pp} is not between 1 and the {num_layers} layers."
        raise OptionError(message)
    each, rest = divmod(num_layers, pp)
    return [each + (1 if pp - 1 - rest <= rank < pp - 1 else 0) for rank in range(pp)]


def _outside(shape: ModelShape, *, is_first: bool, is_last: bool) -> list[Weight]:
    """Return the weights outside the layers that a stage holds: most are the first's."""
    last_groups = {"head", "norms"}
    if shape.tie_word_embeddings and not is_first:
        last_groups.add("embedding")
    return [
        weight
        for weight in shape.weights
        if (is_first and weight.group not in {"head", "norms"})
        or (is_last and weight.group in last_groups)
    ]


def _rank_params(layers: Sequence[LayerShape], tp: int) -> int:
    """Return the parameters of layers on one rank."""
    total = 0
    for layer in layers:
        heads = layer.attention.num_kv_heads if layer.attention else 1
        total += sum(params_on_rank(weight, heads, tp) for weight in layer.weights)
    return total
