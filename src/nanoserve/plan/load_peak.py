"""What loading takes for a moment beside the weights that it leaves.

Rows wait on their way into panels; and where weights are fitted to 4 bits, one layer after
the other lies there in float32 first, to measure its inputs. The two are never held at once,
and both are given back before the pool is allocated. The sizes of what `weights` works on at
once are here, so that what is counted is what is taken.
"""

from dataclasses import dataclass
from math import lcm

from nanoserve.plan.activation_plan import StepShape, estimate_activation_bytes
from nanoserve.plan.formula import Formula, Number, compute
from nanoserve.plan.weight_plan import (
    PANEL_OUTPUTS,
    SCALE_BYTES,
    LinearFormat,
    WeightFormats,
    WeightPlan,
    linear_sizes,
)
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import MIB

LOAD_PEAK = "packing, at its peak"  # its name below a boot's memory, and a plan's
COPY_THREADS = 2  # parameters filled at once; first touches of memory are what they wait for
PIECE_VALUES = MIB  # converted at once; 4 MiB of float32 stay in a core's cache
SLICE_VALUES = 4 * MIB  # of a large weight that are packed at once
MEASURED_CONTEXTS = 4
CONTEXT_TOKENS = 32  # of each context that inputs are measured on
_FLOAT_BYTES = 4
# Of a value while it is converted: dequantised in float32, and the integer made of it, which in
# 8 bits is there in pieces and as a whole.
_CONVERTED_BYTES = {"int8": 6, "int4": 5}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What a first start's loading holds at its highest, nothing of it being on disk yet.

    Attributes:
        weight_bytes: What it leaves: the placed weights and the rotary table.
        packing_bytes: Beside them, while rows are packed.
        measuring_bytes: Before any of them has a value, while inputs are measured; 0 where
            nothing is fitted.
    """

    weight_bytes: int
    packing_bytes: int
    measuring_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once."""
        return max(self.measuring_bytes, self.weight_bytes + self.packing_bytes)

    def fits(self, free_bytes: int) -> bool:
        """Whether loading gets by with what is free before it."""
        return self.peak_bytes <= free_bytes

    @property
    def peak_formula(self) -> Formula | None:
        """How `peak_bytes` comes about; None where nothing is packed."""
        if not self.packing_bytes:
            return None
        symbols: dict[str, Number] = {"weights": self.weight_bytes, "packing": self.packing_bytes}
        expression = "weights + packing"
        if self.measuring_bytes:
            symbols["measuring"] = self.measuring_bytes
            expression = f"max({expression}, measuring)"
        return compute(LOAD_PEAK, expression, "bytes", symbols)


def plan_load(spec: ModelSpec, weights: WeightPlan, weight_bytes: int) -> LoadPlan:
    """Count what the first start with these weights takes for a moment.

    An upper bound: a file that holds 4 bits already is not fitted, and measures nothing.

    Args:
        spec: Shape of the model.
        weights: How its weights are kept.
        weight_bytes: Of all of them, and what else loading leaves.
    """
    formats = weights.formats
    if formats is None:
        return LoadPlan(weight_bytes, 0, 0)
    is_fitted = formats.layers.name == "int4"
    measuring_bytes = measuring_bytes_of(spec) if is_fitted else 0
    return LoadPlan(weight_bytes, packing_bytes_of(spec, formats), measuring_bytes)


def packing_bytes_of(spec: ModelSpec, formats: WeightFormats) -> int:
    """Return what threads hold while each packs a slice: its rows, and more for a moment.

    That is either a piece of them that is converted, or the bytes that go into panels.
    """
    slices, moments = [], []
    for name, out_size, in_size, _ in linear_sizes(spec):
        one = formats.head if name == "lm_head" else formats.layers
        rows = _rows_at_once(spec, name, out_size, in_size)
        slices.append(stage_bytes(one, rows, in_size))
        converted_bytes = PIECE_VALUES * _CONVERTED_BYTES.get(one.name, _FLOAT_BYTES)
        packed_bytes = rows * in_size if one.group_size else 0
        moments.append(max(converted_bytes, packed_bytes))
    return COPY_THREADS * (max(slices) + max(moments))


def stage_bytes(one: LinearFormat, rows: int, in_size: int) -> int:
    """Return the bytes of rows that are converted to a format, and not packed yet."""
    if not one.group_size:
        return one.num_bytes(PANEL_OUTPUTS, in_size) // PANEL_OUTPUTS * rows
    num_scales = 2 if one.name == "int4" else 1
    return rows * (in_size + num_scales * SCALE_BYTES * (in_size // one.group_size))


def slice_rows(in_size: int, head_rows: int = 1) -> int:
    """Return how many rows of a weight are packed at once: a few MiB.

    Args:
        in_size: Values of a row.
        head_rows: Rows that are put in order together.

    Returns:
        Whole panels and whole heads, at least one of each.
    """
    least = lcm(PANEL_OUTPUTS, head_rows)
    return max(1, SLICE_VALUES // in_size // least) * least


def measuring_bytes_of(spec: ModelSpec) -> int:
    """Return what measuring the inputs of a fit holds: a layer in float32, and a step of it.

    Beside the step's temporaries, the squares of the widest input are there, the layer's keys
    and values, and a number for each input of every layer.
    """
    sizes = [size for size in linear_sizes(spec) if size[0] != "lm_head"]
    layer_size = sum(out_size * in_size for _, out_size, in_size, _ in sizes)
    inputs = [in_size for _, _, in_size, _ in sizes]
    num_tokens = MEASURED_CONTEXTS * CONTEXT_TOKENS
    step = StepShape(num_tokens, 0, 0, num_residual_rows=num_tokens)
    step_bytes = estimate_activation_bytes(spec, step, _FLOAT_BYTES, 0).peak_bytes
    kept = num_tokens * (max(inputs) + 2 * spec.kv_size) + spec.num_layers * sum(inputs)
    return (layer_size + kept) * _FLOAT_BYTES + step_bytes


def _rows_at_once(spec: ModelSpec, name: str, out_size: int, in_size: int) -> int:
    """Return how many rows of a linear layer are packed at once: see `weights.filling`."""
    starts = {
        "qkv_proj": (spec.q_size, spec.q_size + spec.kv_size),
        "gate_up_proj": (spec.intermediate_size,),
    }.get(name, ())
    if any(start % PANEL_OUTPUTS for start in starts):
        return out_size  # a tensor begins within a panel
    return min(out_size, slice_rows(in_size))
