"""Under which group a weight format knows a weight: the one place both counts and bytes ask."""

from nanoserve.spec.model_shape import LayerShape, Weight

# Groups of `model_shape` under the names that formats know; towers and encoders stay 16-bit.
_FORMAT_GROUPS = {"state": "attention", "tower": "vision", "encoder": "vision"}


def format_group(weight: Weight, layer: LayerShape | None = None) -> str:
    """Return the group under which a format knows a weight.

    Vectors are never quantised and count as norms; the dense part beside experts is shared
    experts.

    Args:
        weight: The weight.
        layer: Its layer; None outside them.
    """
    if weight.columns == 1 and weight.group not in _FORMAT_GROUPS:
        return "norms"
    has_experts = layer is not None and layer.mlp is not None and layer.mlp.num_experts > 0
    if weight.group == "mlp" and has_experts:
        return "shared_experts"
    return _FORMAT_GROUPS.get(weight.group, weight.group)
