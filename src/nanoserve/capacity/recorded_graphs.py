"""How many steps vLLM records by default, and what its boot estimates they take.

Knows no budget: whether the estimate comes off it is the profile's to say.
"""

from nanoserve.capacity.engine_profile import EngineProfile
from nanoserve.capacity.interval import Interval
from nanoserve.units import GIB, MIB

_FIRST_SIZES = (1, 2, 4)
_MOST_ROWS = 512
_WIDER_STEPS_FROM = 256  # sizes are 8 apart up to it and 16 apart above
_SIZES: tuple[int, ...] = (
    *_FIRST_SIZES,
    *range(8, _WIDER_STEPS_FROM, 8),
    *range(_WIDER_STEPS_FROM, _MOST_ROWS + 1, 16),
)


def recorded_graphs(max_num_seqs: int) -> int:
    """Return the steps recorded by default: piecewise ones of each size, whole decode steps too.

    Sizes go up to twice the slots and at most 512; whole steps only up to the slots.

    Source: vLLM config/vllm.py, `_set_cudagraph_sizes`, and `FULL_AND_PIECEWISE`.
    Example: 256 slots record 51 and 35 as logs say, 1,024 slots 51 and 51.
    """
    most = min(2 * max_num_seqs, _MOST_ROWS)
    piecewise = sum(size <= most for size in _SIZES)
    return piecewise + sum(size <= min(max_num_seqs, most) for size in _SIZES)


def graph_bytes(
    profile: EngineProfile, max_num_seqs: int, num_layers: int, *, is_eager: bool = False
) -> Interval:
    """Return what recorded steps take, in the budget or outside it.

    An engine that estimates takes two samples and counts the second for every further step, so
    that layers x steps decide.

    Source: vLLM gpu_model_runner.py, `profile_cudagraph_memory`.
    Example: Llama 3.1 8B with 1,024 slots, 102 steps of 32 layers, is estimated 0.84 GiB, and at
    0.22 MiB each 0.70; Qwen2.5 7B with 28 layers 0.61, both ways.
    """
    if is_eager or profile.graphs == "none":
        return Interval.exactly(0)
    if profile.graph_layer_mib is None:
        return Interval.scaled(profile.graph_gib, GIB)
    return Interval.scaled(
        profile.graph_layer_mib, num_layers * recorded_graphs(max_num_seqs) * MIB
    )
