"""Bytes of the weights once placed, and of what lies beside them, from the model's shape alone.

Linear layers are packed for the CPU's native products, in the compute dtype or in 8 or 4 bits;
norms and biases never are, and an embedding only where it is the head as well. How packed
values lie is written in `kernels/csrc/panels.h`; what they take is counted here.
"""

from collections import Counter
from dataclasses import dataclass

from nanoserve.errors import OptionError
from nanoserve.options import Quantization
from nanoserve.plan.boot_choices import DTYPE_BYTES
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.param_count import count_parameters
from nanoserve.units import format_bytes, round_up

PANEL_OUTPUTS = 32  # outputs of a panel; the last is filled up with zeros
GROUP_SIZE = 32  # inputs that share a scale: a GGUF block's, so that its bits can be kept
SCALE_BYTES = 2  # float16, as in GGUF
_SCRATCH_ALIGNMENT = 64  # bytes that a row of quantised activations is filled up to
_SCRATCH_GROUP_BYTES = 12  # beside the activations of each group
_SCALES = {"int8": 1, "int4": 2}  # of each group: a scale; a scale and a minimum
_ITEM_INPUTS = {"float32": 1, "float16": 1, "bfloat16": 2, "int8": 4, "int4": 8}
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class LinearFormat:
    """How a linear layer's weight is stored.

    Attributes:
        name: A dtype, `int8` (a value is scale * q) or `int4` (scale * q + minimum).
        group_size: Inputs of an output that share a scale; 0 where there are none.
    """

    name: str
    group_size: int = 0

    def num_bytes(self, out_size: int, in_size: int) -> int:
        """Return what a packed weight takes, padding, scales and minimums included.

        Example: 576 x 576 in int8 takes 576 * 576 + 576 * 18 * 2 = 352,512.
        """
        rows = round_up(out_size, PANEL_OUTPUTS)
        value_bits = rows * round_up(in_size, _ITEM_INPUTS[self.name]) * _BITS[self.name]
        if not self.group_size:
            return value_bits // 8
        num_groups = rows * (in_size // self.group_size)
        return value_bits // 8 + num_groups * _SCALES[self.name] * SCALE_BYTES

    def describe(self) -> str:
        """Return the name, with the group size if there is one."""
        return f"{self.name} in groups of {self.group_size}" if self.group_size else self.name


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """How the linear layers of a model are stored.

    Attributes:
        layers: Of the projections of every layer.
        head: Of the output head, and of the embedding where that is the same.
    """

    layers: LinearFormat
    head: LinearFormat


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """The weights of a model as they are kept.

    Attributes:
        quantization: As asked for.
        formats: Of packed linear layers; None where weights lie as in the checkpoint.
        parts: Bytes by format, `LinearFormat.describe` or a dtype; the largest first.
    """

    quantization: Quantization
    formats: WeightFormats | None
    parts: tuple[tuple[str, int], ...]

    @property
    def num_bytes(self) -> int:
        """All parameters; a tied head counts once."""
        return sum(num_bytes for _, num_bytes in self.parts)

    def describe(self) -> str:
        """Return the bytes of each format on one line."""
        return ", ".join(f"{name} {format_bytes(num_bytes)}" for name, num_bytes in self.parts)


def choose_formats(quantization: Quantization, dtype: str) -> WeightFormats:
    """Return how packed layers are stored; the head has 8 bits where the layers have 4.

    Measured: docs/quality.md; a head in 4 bits costs more than all layers together.
    """
    if quantization == "none":
        return WeightFormats(LinearFormat(dtype), LinearFormat(dtype))
    return WeightFormats(LinearFormat(quantization, GROUP_SIZE), LinearFormat("int8", GROUP_SIZE))


def plan_weights(
    spec: ModelSpec, dtype: str, quantization: Quantization, *, is_packed: bool
) -> WeightPlan:
    """Count the bytes of all parameters.

    Args:
        spec: Shape of the model.
        dtype: Compute dtype, which what is not packed has.
        quantization: Of the linear layers.
        is_packed: Whether native products read them.

    Raises:
        OptionError: A layer cannot be cut into groups.
    """
    num_parameters = count_parameters(spec).total
    if not is_packed:
        parts = ((dtype, num_parameters * DTYPE_BYTES[dtype]),)
        return WeightPlan(quantization, None, parts)
    formats = choose_formats(quantization, dtype)
    bytes_by_name: Counter[str] = Counter()
    for name, out_size, in_size, count in linear_sizes(spec):
        one = formats.head if name == "lm_head" else formats.layers
        _check_groups(one, name, in_size)
        bytes_by_name[one.describe()] += count * one.num_bytes(out_size, in_size)
        num_parameters -= count * out_size * in_size
    bytes_by_name[dtype] += num_parameters * DTYPE_BYTES[dtype]
    return WeightPlan(quantization, formats, tuple(bytes_by_name.most_common()))


def scratch_bytes(quantization: Quantization, in_size: int) -> int:
    """Return what a product keeps of one row of its inputs, in 8 bits; 0 where it does not.

    A scale, a sum and a place for both in every group: `kernels/csrc/linear_quantized.cpp`.
    """
    if quantization == "none":
        return 0
    return round_up(in_size, _SCRATCH_ALIGNMENT) + _SCRATCH_GROUP_BYTES * (in_size // GROUP_SIZE)


def plan_rope_bytes(spec: ModelSpec, max_positions: int, itemsize: int) -> int:
    """Return the bytes of the rotary table: cos and sin, positions x head_dim each."""
    return 2 * max_positions * spec.head_dim * itemsize


def linear_sizes(spec: ModelSpec) -> tuple[tuple[str, int, int, int], ...]:
    """Return name, outputs, inputs and number of the linear layers, as the decoder fuses them."""
    hidden, inter, layers = spec.hidden_size, spec.intermediate_size, spec.num_layers
    return (
        ("qkv_proj", spec.q_size + 2 * spec.kv_size, hidden, layers),
        ("o_proj", hidden, spec.q_size, layers),
        ("gate_up_proj", 2 * inter, hidden, layers),
        ("down_proj", hidden, inter, layers),
        ("lm_head", spec.vocab_size, hidden, 1),
    )


def _check_groups(one: LinearFormat, name: str, in_size: int) -> None:
    if one.group_size and in_size % one.group_size:
        message = (
            f"--quantization cuts the inputs of a layer into groups of {one.group_size}, and the "
            f"{in_size:,} inputs of {name} leave {in_size % one.group_size} over; leave it out "
            "for this model."
        )
        raise OptionError(message)
