"""Which layers have experts, and what a family's experts are like.

Owns the rules by which configs say that a layer is sparse. Knows no attention.
"""

from dataclasses import dataclass
from functools import partial

from nanoserve.spec.config_fields import MAX_LAYERS, ConfigFields
from nanoserve.spec.family import ReadLayers
from nanoserve.spec.model_shape import LayerShape
from nanoserve.spec.shape_fields import (
    MAX_EXPERTS,
    hidden_size,
    layer_numbers,
    names_of_layers,
    num_layers,
    optional_width,
    stated_flag,
    width,
)
from nanoserve.spec.weight_parts import ExpertDims, experts_layer, mlp_layer


@dataclass(frozen=True, slots=True)
class ExpertStyle:
    """What tells one family's experts from another's.

    Attributes:
        width_key: Key of an expert's width.
        dense_key: Key of the width of layers without experts.
        rule: How sparse layers are told: `all`, `first_k`, `step`, `interleave`, `period`,
            `range`, `listed`.
        shared_key: Key of the shared part's width; empty for a count of expert widths.
        num_shared: Shared experts where the config gives no count; with `shared_key`, unused.
        has_shared_gate: A one-wide gate on the shared part.
        has_bias: Experts and router have biases.
        has_score_bias: The router has a score bias per expert that is a parameter.
        mlp_bias: Bias of the layers without experts.
    """

    width_key: str = "moe_intermediate_size"
    dense_key: str = "intermediate_size"
    rule: str = "all"
    shared_key: str = ""
    num_shared: int = 0
    has_shared_gate: bool = False
    has_bias: bool = False
    has_score_bias: bool = False
    mlp_bias: bool | str = False


def expert_mlps(style: ExpertStyle) -> ReadLayers:
    """Return the reader of a family's feed-forward parts."""
    return partial(_expert_mlps, style)


def _expert_mlps(style: ExpertStyle, fields: ConfigFields) -> list[LayerShape]:
    sparse = sparse_layers(fields, style.rule)
    size = hidden_size(fields)
    fields.skip("num_experts")
    experts = experts_layer(expert_dims(fields, style), size) if any(sparse) else LayerShape()
    dense = LayerShape()
    if not all(sparse):
        has_bias = stated_flag(fields, style.mlp_bias)
        dense = mlp_layer(width(fields, style.dense_key), size, has_bias=has_bias)
    return [experts if is_sparse else dense for is_sparse in sparse]


def expert_dims(fields: ConfigFields, style: ExpertStyle) -> ExpertDims:
    """Return the widths and counts of a family's experts."""
    size = width(fields, style.width_key)
    num_experts = fields.size("num_experts", MAX_EXPERTS)
    if style.shared_key:
        shared = optional_width(fields, style.shared_key)
    else:
        shared = size * fields.size("n_shared_experts", MAX_EXPERTS, style.num_shared, low=0)
    return ExpertDims(
        num_experts=num_experts,
        num_per_token=fields.size("num_experts_per_tok", num_experts),
        intermediate_size=size,
        shared_intermediate_size=shared,
        has_shared_gate=style.has_shared_gate and shared > 0,
        has_bias=style.has_bias,
        num_router_params=num_experts if style.has_score_bias else 0,
    )


def sparse_layers(fields: ConfigFields, rule: str) -> list[bool]:
    """Return which layers have experts: as a list says, or else by the family's rule."""
    names = names_of_layers(fields, "mlp_layer_types", ("dense", "sparse"))
    if names is not None:
        return [name == "sparse" for name in names]
    frequency = fields.raw("moe_layer_freq")
    if isinstance(frequency, list):
        return _from_ones(fields, frequency)
    return _RULES[rule](fields, num_layers(fields))


def _from_ones(fields: ConfigFields, ones: list[object]) -> list[bool]:
    if len(ones) != num_layers(fields) or any(one not in (0, 1) for one in ones):
        fields.fail_corrupt("moe_layer_freq is not a list of a 0 or 1 per layer.")
    return [bool(one) for one in ones]


def _all(fields: ConfigFields, count: int) -> list[bool]:
    del fields
    return [True] * count


def _first_k(fields: ConfigFields, count: int) -> list[bool]:
    """DeepSeek: the first layers are dense, then every n-th has experts."""
    num_dense = fields.size("first_k_dense_replace", MAX_LAYERS, 0, low=0)
    step = fields.size("moe_layer_freq", MAX_LAYERS, 1)
    return [i >= num_dense and i % step == 0 for i in range(count)]


def _step(fields: ConfigFields, count: int) -> list[bool]:
    """Qwen: every n-th layer but those listed."""
    step = fields.size("decoder_sparse_step", MAX_LAYERS, 1)
    dense = layer_numbers(fields, "mlp_only_layers")
    return [i not in dense and (i + 1) % step == 0 for i in range(count)]


def _interleave(fields: ConfigFields, count: int) -> list[bool]:
    """Llama 4: the layers listed, or every n-th."""
    listed = layer_numbers(fields, "moe_layers")
    if listed:
        return [i in listed for i in range(count)]
    step = fields.size("interleave_moe_layer_step", MAX_LAYERS, 1)
    return [(i + 1) % step == 0 for i in range(count)]


def _period(fields: ConfigFields, count: int) -> list[bool]:
    """Jamba: every n-th layer from an offset on, if there is more than one expert."""
    period = fields.size("expert_layer_period", MAX_LAYERS)
    offset = fields.size("expert_layer_offset", MAX_LAYERS, low=0)
    has_experts = fields.size("num_experts", MAX_EXPERTS) > 1
    return [has_experts and i % period == offset for i in range(count)]


def _range(fields: ConfigFields, count: int) -> list[bool]:
    """Ernie 4.5: every n-th layer between two."""
    start = fields.size("moe_layer_start_index", MAX_LAYERS, 1, low=0)
    end = fields.raw("moe_layer_end_index")
    last = count - 1 if end in (None, -1) else fields.size("moe_layer_end_index", MAX_LAYERS)
    step = fields.size("moe_layer_interval", MAX_LAYERS, 1)
    return [start <= i <= last and (i + 1) % step == 0 for i in range(count)]


def _listed(fields: ConfigFields, count: int) -> list[bool]:
    """Step 3.5: layers listed in a text, else all but the first three."""
    if not fields.has("moe_layers_enum"):
        num_dense = fields.size("first_k_dense_replace", MAX_LAYERS, 3, low=0)
        return [i >= num_dense for i in range(count)]
    words = fields.text("moe_layers_enum").split(",")
    if not all(word.strip().isdecimal() for word in words):
        fields.fail_corrupt("moe_layers_enum is not a list of layer numbers.")
    listed = {word.strip().lstrip("0") or "0" for word in words}
    return [str(i) in listed for i in range(count)]


_RULES = {
    "all": _all,
    "first_k": _first_k,
    "step": _step,
    "interleave": _interleave,
    "period": _period,
    "range": _range,
    "listed": _listed,
}
