"""Weights of each pipeline stage on one rank: parameters by group, bytes as stored and laid out.

Joins what knows nothing of each other: how ranks divide a model (`sharding`), which groups a
format quantises (`quant_spec`), the parameters (`model_shape`), and what laying them out adds
(`device_weights`). Plans and the comparison with recorded boots both ask here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nanoserve.capacity.device_weights import laid_out_bytes, rope_bytes
from nanoserve.capacity.format_groups import format_group
from nanoserve.capacity.interval import Interval
from nanoserve.plan.formula import Formula, Number, compute
from nanoserve.plan.sharding import StageWeights, params_on_rank, stage_weights
from nanoserve.spec.model_shape import LayerShape, ModelShape
from nanoserve.spec.quant_spec import WeightFormat

# What a file's average bits may be off by on another model. Source: quant_bits.csv, where
# Q4_K_M is 4.83 to 4.90 bits on models of 1B to 70B, and small ones weigh their embedding more.
_ESTIMATE = (0.95, 1.0, 1.06)
LAYOUT = "rounding and rotary tables"


@dataclass(frozen=True, slots=True)
class RankWeights:
    """What one rank of one stage holds.

    Attributes:
        stage: Number of the stage.
        first_layer: Number of its first layer.
        num_layers: Its layers.
        params: Parameters by format group, on one rank.
        weight_bytes: Their bytes.
        formula: How those come about.
        layout: What torch's allocator, kernels' tiles and rotary tables add, where an engine
            runs on torch.
        stored_share: What is really stored over what the format's bits come to: by a file's
            headers, or by our server's packing.
    """

    stage: int
    first_layer: int
    num_layers: int
    params: Mapping[str, int]
    weight_bytes: Interval
    formula: Formula
    layout: Formula
    stored_share: float = 1.0

    @property
    def num_params(self) -> int:
        """Parameters on the rank."""
        return sum(self.params.values())

    @property
    def device_bytes(self) -> int:
        """Bytes on the rank's GPU, likely figure, as engines on torch log them."""
        return self.weight_bytes.mid + int(self.layout.value)


def rank_weights(
    shape: ModelShape,
    stored: WeightFormat,
    pp: int = 1,
    tp: int = 1,
    file_bytes: int | None = None,
    parts: Sequence[StageWeights] | None = None,
) -> tuple[RankWeights, ...]:
    """Return the weights of each stage on one of its ranks.

    Args:
        shape: The model.
        stored: How its weights are stored.
        pp: Pipeline stages.
        tp: Tensor-parallel ranks of each.
        file_bytes: All weights as files have them, where those are at hand; shared out as the
            formula would share its own total.
        parts: The stages, where an engine divides layers in its own way; None as vLLM does.
    """
    parts = parts or stage_weights(shape, pp)
    counts = [_rank_groups(part, tp) for part in parts]
    factor = 1.0
    if file_bytes is not None:
        factor = file_bytes / max(1, stored.weight_bytes(Counter(_groups_of(shape))))
    return tuple(
        RankWeights(
            stage=number,
            first_layer=part.first_layer,
            num_layers=part.num_layers,
            params=groups,
            weight_bytes=_interval(groups, stored, file_bytes is not None, factor),
            formula=bytes_formula(groups, stored, factor),
            layout=_layout(shape, part, groups, stored, tp),
            stored_share=factor,
        )
        for number, (part, groups) in enumerate(zip(parts, counts, strict=True))
    )


def heaviest_rank_bytes(shape: ModelShape, stored: WeightFormat, tp: int = 1, pp: int = 1) -> int:
    """Return the bytes of a model on the GPU that holds most of it.

    Raises:
        OptionError: There are more stages than layers.
    """
    return max(weights.device_bytes for weights in rank_weights(shape, stored, pp, tp))


def group_params(shape: ModelShape) -> dict[str, int]:
    """Return the parameters of a whole model by format group."""
    return _groups_of(shape)


def _interval(
    groups: Mapping[str, int], stored: WeightFormat, is_exact: bool, factor: float
) -> Interval:
    value = int(bytes_formula(groups, stored, factor).value)
    if stored.is_estimate and not is_exact:
        return Interval.scaled(_ESTIMATE, value)
    return Interval.exactly(value)


def _layout(
    shape: ModelShape,
    part: StageWeights,
    groups: Mapping[str, int],
    stored: WeightFormat,
    tp: int,
) -> Formula:
    laid_out = laid_out_bytes(part, shape.hidden_size, stored, tp)
    return compute(
        LAYOUT,
        "max(0, as_laid_out - parameters_bytes) + rotary_table",
        "bytes",
        {
            "as_laid_out": laid_out,
            "parameters_bytes": bytes_formula(groups, stored).value,
            "rotary_table": rope_bytes(
                part.layers, shape.rotary_positions or shape.max_position_embeddings or 0
            ),
        },
    )


def bytes_formula(groups: Mapping[str, int], stored: WeightFormat, factor: float = 1.0) -> Formula:
    """Return the sum over groups of parameters times bits, in whole bytes, times a factor."""
    terms = []
    symbols: dict[str, Number] = {}
    for group, num_params in groups.items():
        symbols[group] = num_params
        symbols[f"{group}_bits"] = stored.group_bits_per_weight(group)
        terms.append(f"{group} * {group}_bits")
    expression = f"({' + '.join(terms)}) / 8" if terms else "0"
    if factor != 1.0:
        symbols["file_bytes_share"] = factor
        expression += " * file_bytes_share"
    return compute("weights", f"ceil({expression})", "bytes", symbols)


def _rank_groups(part: StageWeights, tp: int) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for weight in part.outside:
        counts[format_group(weight)] += params_on_rank(weight, 1, tp)
    for layer, copies in Counter(part.layers).items():
        for group, num_params in _layer_groups(layer, tp):
            counts[group] += copies * num_params
    return dict(counts)


def _layer_groups(layer: LayerShape, tp: int) -> Iterator[tuple[str, int]]:
    heads = layer.attention.num_kv_heads if layer.attention else 1
    for weight in layer.weights:
        yield format_group(weight, layer), params_on_rank(weight, heads, tp)


def _groups_of(shape: ModelShape) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for weight in shape.weights:
        counts[format_group(weight)] += weight.num_params
    for layer, copies in Counter(shape.layers).items():
        for weight in layer.weights:
            counts[format_group(weight, layer)] += copies * weight.num_params
    return dict(counts)
