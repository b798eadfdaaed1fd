"""How torch and an engine lay a rank's tensors out: the allocator's rounding, tiles, rotary tables.

Knows no engine and no config: a stage and a format are handed in. What a rank holds is
`sharding`'s, what of it is in which format the format's; `rank_weights` puts them together.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from nanoserve.capacity.format_groups import format_group
from nanoserve.plan.sharding import StageWeights, params_on_rank
from nanoserve.spec.model_shape import LayerShape, Weight
from nanoserve.spec.quant_spec import WeightFormat
from nanoserve.units import MIB, ceil_div, round_up

ROUNDED_FROM_BYTES = 10 * MIB
ROUNDED_TO_BYTES = 2 * MIB
SPLIT_ABOVE_BYTES = MIB
_TABLE_VALUE_BYTES = 2
_MXFP4_WIDTHS = (256, 128)  # what an expert's sides are rounded up to: of the model, of the expert


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


def laid_out_bytes(part: StageWeights, hidden_size: int, stored: WeightFormat, tp: int = 1) -> int:
    """Return the bytes of a stage's tensors on one rank, as an engine and torch lay them out.

    Args:
        part: The stage.
        hidden_size: Width of the residual.
        stored: How its weights are stored.
        tp: GPUs that share each layer.

    Example: Qwen2.5 7B in bf16 is 14.185 GiB of parameters and takes 14.240; its rotary table
    adds 8 MiB, and vLLM logs 14.25.
    """
    total = sum(_tensors(part.outside, None, hidden_size, stored, tp))
    for layer, copies in Counter(part.layers).items():
        total += copies * sum(_tensors(layer.weights, layer, hidden_size, stored, tp))
    return total


def rope_bytes(layers: Iterable[LayerShape], num_positions: int) -> int:
    """Return the rotary table's bytes: cosine and sine of half a head for every position.

    Args:
        layers: Those of a stage; the first that attends decides.
        num_positions: Positions of all tables; the longest context where there is one.

    Example: Llama 3.1 8B keeps 131,072 * 128 * 2 = 32 MiB.
    """
    for layer in layers:
        if layer.attention is not None:
            latent = layer.attention.latent
            width = layer.attention.head_dim if latent is None else latent.rope_dim
            return num_positions * width * _TABLE_VALUE_BYTES
    return 0


def _kv_heads(layer: LayerShape | None) -> int:
    return layer.attention.num_kv_heads if layer and layer.attention else 1


def _tensors(
    weights: Iterable[Weight],
    layer: LayerShape | None,
    hidden_size: int,
    stored: WeightFormat,
    tp: int,
) -> Iterator[int]:
    """Yield the bytes of each tensor as an engine lays them out.

    Query, key and value are one, and so are gate and up.
    """
    weights = tuple(weights)
    num_kv_heads = _kv_heads(layer)
    for weight in weights:
        if weight.columns == 1:
            bits = stored.group_bits_per_weight(format_group(weight, layer))
            yield ceil_div(round(params_on_rank(weight, num_kv_heads, tp) * bits), 8)
    matrices = [weight for weight in weights if weight.columns > 1]
    for _, run in groupby(matrices, key=lambda w: (w.group, w.columns, w.copies)):
        for tensor in _merged(tuple(run), hidden_size):
            bits = sum(
                params_on_rank(weight, num_kv_heads, tp)
                * stored.group_bits_per_weight(format_group(weight, layer))
                * _padding(weight, stored, tp)
                for weight in tensor
            )
            yield allocated_bytes(ceil_div(round(bits), 8))


def _merged(run: tuple[Weight, ...], hidden_size: int) -> tuple[tuple[Weight, ...], ...]:
    """Return a run of matrices with equal inputs as tensors: an output projection stands alone."""
    if len(run) > 2 and run[-1].rows == hidden_size:
        return run[:-1], run[-1:]
    return (run,)


def _padding(weight: Weight, stored: WeightFormat, tp: int) -> float:
    """Return what the kernels' tiles add to experts in MXFP4; the wider side is the model's.

    Source: vLLM quantization/mxfp4.py, `round_up` of both sides for Marlin.
    Example: an expert of gpt-oss, 2,880 x 2,880, is laid out as 3,072 x 2,944.
    """
    if stored.name != "mxfp4" or weight.group != "experts":
        return 1.0
    wide, narrow = max(weight.rows, weight.columns), min(weight.rows, weight.columns)
    narrow = ceil_div(narrow, tp)
    padded = round_up(wide, _MXFP4_WIDTHS[0]) * round_up(narrow, _MXFP4_WIDTHS[1])
    return padded / (wide * narrow)
