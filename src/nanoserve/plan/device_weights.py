"""What an engine's weights take on one GPU: formats, ranks, the allocator's rounding, rotary tables.

Knows no engine and no config: a shape and a format are handed in. What of a model is stored
in which format is the format's, what a rank holds is `sharding`'s.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from nanoserve.plan.sharding import params_on_rank, plan_stages
from nanoserve.spec.model_shape import LayerShape, ModelShape, Weight
from nanoserve.spec.quant_spec import FULL_BITS, WeightFormat
from nanoserve.units import MIB, ceil_div, round_up

ROUNDED_FROM_BYTES = 10 * MIB
ROUNDED_TO_BYTES = 2 * MIB
SPLIT_ABOVE_BYTES = MIB
_TABLE_VALUE_BYTES = 2
_MXFP4_WIDTHS = (256, 128)  # what an expert's sides are rounded up to: of the model, of the expert
# Groups of `model_shape` under the names that formats know; towers and encoders stay 16-bit.
FORMAT_GROUPS = {"state": "attention", "tower": "vision", "encoder": "vision"}


def allocated_bytes(num_bytes: int) -> int:
    """Return what PyTorch's allocator hands out for a tensor of `num_bytes`.

    Tensors from 10 MiB lie in a segment of their own, whole times 2 MiB; what is left of it
    is split off only if it is more than 1 MiB.

    Source: PyTorch c10/cuda/CUDACachingAllocator.cpp, `kRoundLarge` and `should_split`.
    Example: the gate and up projection of Qwen2.5 7B is 259 MiB and takes 260.
    """
    segment = round_up(num_bytes, ROUNDED_TO_BYTES)
    if num_bytes < ROUNDED_FROM_BYTES or segment - num_bytes > SPLIT_ABOVE_BYTES:
        return num_bytes
    return segment


def device_weight_bytes(
    shape: ModelShape, weight_format: WeightFormat | None, tp: int = 1, pp: int = 1
) -> int:
    """Return the bytes of a model on the GPU that holds most of it.

    Args:
        shape: The model.
        weight_format: How it is stored; None for 16 bits throughout.
        tp: GPUs that share each layer.
        pp: Pipeline stages; the fattest decides.

    Raises:
        OptionError: There are more stages than layers.

    Example: Qwen2.5 7B in bf16 is 14.19 GiB of parameters and takes 14.24, as vLLM logs; its
    rotary table adds 8 MiB.
    """
    stages = plan_stages(shape, pp, tp)
    total = sum(_tensors(shape.weights, 1, shape.hidden_size, weight_format, tp))
    for layer in shape.layers:
        heads = _kv_heads(layer)
        total += sum(_tensors(layer.weights, heads, shape.hidden_size, weight_format, tp))
    fattest = max(stage.num_params for stage in stages)
    return total * fattest // sum(stage.num_params for stage in stages) + rope_bytes(shape)


def rope_bytes(shape: ModelShape) -> int:
    """Return the rotary table's bytes: cosine and sine of half a head for every position.

    Example: Llama 3.1 8B keeps 131,072 * 128 * 2 = 32 MiB.
    """
    for layer in shape.layers:
        if layer.attention is not None:
            latent = layer.attention.latent
            width = layer.attention.head_dim if latent is None else latent.rope_dim
            return (shape.max_position_embeddings or 0) * width * _TABLE_VALUE_BYTES
    return 0


def _kv_heads(layer: LayerShape) -> int:
    return layer.attention.num_kv_heads if layer.attention else 1


def _tensors(
    weights: Iterable[Weight],
    num_kv_heads: int,
    hidden_size: int,
    weight_format: WeightFormat | None,
    tp: int,
) -> Iterator[int]:
    """Yield the bytes of each tensor as an engine lays them out: q, k and v are one, so are gate and up."""
    for weight in weights:
        if weight.columns == 1:
            yield params_on_rank(weight, num_kv_heads, tp) * FULL_BITS // 8
    matrices = [weight for weight in weights if weight.columns > 1]
    for _, run in groupby(matrices, key=lambda w: (w.group, w.columns, w.copies)):
        for tensor in _merged(tuple(run), hidden_size):
            bits = sum(
                params_on_rank(weight, num_kv_heads, tp)
                * _bits(weight, weight_format)
                * _padding(weight, weight_format, tp)
                for weight in tensor
            )
            yield allocated_bytes(ceil_div(round(bits), 8))


def _merged(run: tuple[Weight, ...], hidden_size: int) -> tuple[tuple[Weight, ...], ...]:
    """Return a run of matrices with equal inputs as tensors: an output projection stands alone."""
    if len(run) > 2 and run[-1].rows == hidden_size:
        return run[:-1], run[-1:]
    return (run,)


def _bits(weight: Weight, weight_format: WeightFormat | None) -> float:
    if weight_format is None:
        return FULL_BITS
    return weight_format.group_bits_per_weight(FORMAT_GROUPS.get(weight.group, weight.group))


def _padding(weight: Weight, weight_format: WeightFormat | None, tp: int) -> float:
    """Return what the kernels' tiles add to experts in MXFP4; the wider side is the model's.

    Source: vLLM quantization/mxfp4.py, `round_up` of both sides for Marlin.
    Example: an expert of gpt-oss, 2,880 x 2,880, is laid out as 3,072 x 2,944.
    """
    is_padded = weight_format is not None and weight_format.name == "mxfp4"
    if not is_padded or weight.group != "experts":
        return 1.0
    wide, narrow = max(weight.rows, weight.columns), min(weight.rows, weight.columns)
    narrow = ceil_div(narrow, tp)
    padded = round_up(wide, _MXFP4_WIDTHS[0]) * round_up(narrow, _MXFP4_WIDTHS[1])
    return padded / (wide * narrow)
