"""Rotary position embedding: the frequencies, the cos/sin table, and the rotation.

Owns every way of stretching the frequencies. Knows nothing of attention. The two halves
of a head rotate against each other ("neox" order), as in Hugging Face checkpoints.

Source: Su et al. 2021 (RoFormer); the scalings follow transformers 5.24,
`modeling_rope_utils.py`, number for number.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nanoserve.spec.model_spec import ModelSpec, RopeScaling

Lookup = Callable[[Tensor, Tensor], Tensor]  # a table, and int64 [T], to the rows there


def _rows_at(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index)


@dataclass(frozen=True, slots=True)
class Rotation:
    """What rotates the tokens of one step, the same in every layer.

    Attributes:
        cos: [T, 1, D].
        sin: [T, 1, D], negated in its first half.
    """

    cos: Tensor
    sin: Tensor

    def apply(self, heads: Tensor) -> Tensor:
        """Rotate `heads`, [T, any, D]; returns a new tensor of the same dtype."""
        half = heads.shape[-1] // 2
        swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
        return (heads * self.cos).addcmul_(swapped, self.sin)


class RotaryTable:
    """cos and sin of every position up to `max_positions`, computed once in float32."""

    def __init__(
        self, spec: ModelSpec, max_positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        inv_freq, attention_factor = rotary_frequencies(spec)
        positions = torch.arange(max_positions, dtype=torch.float32, device="cpu")
        angles = positions[:, None] * inv_freq
        cos, sin = angles.cos() * attention_factor, angles.sin() * attention_factor
        table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
        self._table = table.to(device=device, dtype=dtype)  # [max_positions, 2, D]

    @property
    def max_positions(self) -> int:
        """Positions in the table."""
        return self._table.shape[0]

    def rotation(self, positions: Tensor, lookup: Lookup = _rows_at) -> Rotation:
        """Look up one step's rotation.

        Args:
            positions: int64 [T], each below `max_positions`.
            lookup: Takes rows of a table.
        """
        rows = lookup(self._table, positions)
        return Rotation(rows[:, 0, None, :], rows[:, 1, None, :])


def rotary_frequencies(spec: ModelSpec) -> tuple[Tensor, float]:
    """Return the angle per position of each dimension pair, and the factor on cos and sin.

    Returns:
        float32 [D / 2] on the CPU, and 1.0 for everything but yarn.
    """
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32, device="cpu")
    wavelengths = spec.rope_theta ** (exponents / spec.head_dim)  # in positions / 2 pi
    inv_freq = 1.0 / wavelengths
    attention_factor = 1.0
    scaling = spec.rope_scaling
    if scaling is not None and scaling.kind == "linear":
        inv_freq = inv_freq / scaling.factor
    elif scaling is not None and scaling.kind == "llama3":
        inv_freq = _llama3(inv_freq, scaling)
    elif scaling is not None:
        inv_freq = _yarn(wavelengths, scaling, spec)
        attention_factor = _yarn_attention_factor(scaling)
    if spec.rope_freq_factors is not None:
        factors = torch.tensor(spec.rope_freq_factors, dtype=torch.float32, device="cpu")
        inv_freq = inv_freq / factors
    return inv_freq, attention_factor


def _llama3(inv_freq: Tensor, scaling: RopeScaling) -> Tensor:
    """Divide long wavelengths by `factor`, keep short ones, blend in between."""
    original = scaling.original_max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelengths = 2 * math.pi / inv_freq
    stretched = torch.where(wavelengths > original / low, inv_freq / scaling.factor, inv_freq)
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * stretched / scaling.factor + smooth * stretched
    is_between = (wavelengths >= original / high) & (wavelengths <= original / low)
    return torch.where(is_between, blended, stretched)


def _yarn(wavelengths: Tensor, scaling: RopeScaling, spec: ModelSpec) -> Tensor:
    """Blend stretched and plain frequencies along a ramp over the dimensions.

    Source: Peng et al. 2023 (YaRN), section 3.2.
    """
    low = _yarn_dimension(scaling.beta_fast, scaling, spec)
    high = _yarn_dimension(scaling.beta_slow, scaling, spec)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.head_dim - 1)
    if low == high:
        high += 0.001  # a ramp needs a slope
    dimensions = torch.arange(spec.head_dim // 2, dtype=torch.float32, device="cpu")
    plain_share = 1 - ((dimensions - low) / (high - low)).clamp(0, 1)
    stretched = 1.0 / (scaling.factor * wavelengths)
    return stretched * (1 - plain_share) + (1.0 / wavelengths) * plain_share


def _yarn_dimension(num_rotations: float, scaling: RopeScaling, spec: ModelSpec) -> float:
    """Return the dimension that turns `num_rotations` times within the original context."""
    turns = scaling.original_max_position_embeddings / (num_rotations * 2 * math.pi)
    return (spec.head_dim * math.log(turns)) / (2 * math.log(spec.rope_theta))


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        numerator = _yarn_mscale(scaling.factor, scaling.mscale)
        return numerator / _yarn_mscale(scaling.factor, scaling.mscale_all_dim)
    return _yarn_mscale(scaling.factor, 1.0)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
