"""Weights of the recurrent mixers: Mamba-1, Mamba-2, gated delta net, Kimi delta attention.

Each takes the `StateShape` that the planner sizes its state from, so the two cannot differ.
"""

from nanoserve.spec.model_shape import LayerShape, StateShape, Weight
from nanoserve.spec.weight_parts import linear, norm


def mamba1_layer(
    shape: StateShape,
    hidden_size: int,
    time_step_rank: int,
    *,
    has_bias: bool = False,
    has_conv_bias: bool = True,
    has_inner_norms: bool = False,
) -> LayerShape:
    """Return a Mamba-1 mixer. `has_inner_norms` is Jamba's norms on dt, B and C.

    Source: Gu and Dao 2023 (arXiv 2312.00752), as transformers' MambaMixer lays it out.
    """
    inner, state = shape.inner_size, shape.state_size
    weights = linear("state", 2 * inner, hidden_size, "even", has_bias)
    weights += _conv(inner, shape.conv_kernel, has_conv_bias)
    weights += linear("state", time_step_rank + 2 * state, inner)
    weights += linear("state", inner, time_step_rank, "even", has_bias=True)
    weights += (Weight("state", inner * (state + 1), split="even"),)  # A and D
    weights += linear("state", hidden_size, inner, "even", has_bias)
    if has_inner_norms:
        weights += (norm(time_step_rank), norm(state, copies=2))
    return LayerShape(state=shape, weights=weights)


def mamba2_layer(
    shape: StateShape,
    hidden_size: int,
    *,
    has_bias: bool = False,
    has_conv_bias: bool = True,
    has_norm: bool = True,
) -> LayerShape:
    """Return a Mamba-2 mixer.

    Source: Dao and Gu 2024 (arXiv 2405.21060), as transformers' Mamba2Mixer lays it out.
    """
    inner = shape.inner_size
    in_size = inner + shape.conv_channels + shape.num_heads
    weights = linear("state", in_size, hidden_size, "even", has_bias)
    weights += _conv(shape.conv_channels, shape.conv_kernel, has_conv_bias)
    weights += (Weight("state", 3 * shape.num_heads, split="even"),)  # A, D and the dt bias
    weights += linear("state", hidden_size, inner, "even", has_bias)
    if has_norm:
        weights += (norm(inner),)
    return LayerShape(state=shape, weights=weights)


def delta_net_layer(shape: StateShape, hidden_size: int) -> LayerShape:
    """Return a gated delta net as Qwen3-Next has it: q, k, v, gate, beta and decay.

    Source: Yang et al. 2024 (arXiv 2412.06464); transformers' Qwen3NextGatedDeltaNet.
    """
    inner, heads = shape.inner_size, shape.num_heads
    weights = linear("state", shape.conv_channels + inner + 2 * heads, hidden_size)
    weights += _conv(shape.conv_channels, shape.conv_kernel, has_bias=False)
    weights += (Weight("state", 2 * heads, split="even"), norm(shape.head_dim))
    weights += linear("state", hidden_size, inner)
    return LayerShape(state=shape, weights=weights)


def kimi_delta_layer(shape: StateShape, hidden_size: int) -> LayerShape:
    """Return a Kimi delta attention: a delta net whose decay and gate are low-rank.

    Source: Kimi Linear (arXiv 2510.26692); transformers' KimiLinearDeltaAttention.
    """
    inner, heads, width = shape.inner_size, shape.num_heads, shape.head_dim
    weights = linear("state", shape.conv_channels, hidden_size)
    weights += _conv(shape.conv_channels, shape.conv_kernel, has_bias=False)
    for _ in ("decay", "gate"):
        weights += linear("state", width, hidden_size, "none") + linear("state", inner, width)
    weights += (Weight("state", inner + heads, split="even"), norm(width))
    weights += linear("state", heads, hidden_size)
    weights += linear("state", hidden_size, inner)
    return LayerShape(state=shape, weights=weights)


def _conv(channels: int, kernel: int, has_bias: bool) -> tuple[Weight, ...]:
    """Return a depthwise convolution, which no format quantises: one row of taps a channel."""
    return (Weight("state", channels * (kernel + has_bias), split="even"),)
