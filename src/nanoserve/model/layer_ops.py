"""What a layer does around its attention, behind one protocol.

`TorchOps` is plain torch: it runs anywhere, can be compiled, and is what every other
implementation is tested against. `native_ops` has the CPU's own.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoserve.errors import InvariantError
from nanoserve.kernels.packed_weight import PackedWeight
from nanoserve.model.rope import Rotation


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMSNorm of each query and key head before the rotation, as Qwen3 has it.

    Attributes:
        q_weight: [D].
        k_weight: [D].
        eps: Epsilon of both.
    """

    q_weight: Tensor
    k_weight: Tensor
    eps: float


class LayerOps(Protocol):
    """The operators of a step but attention, each row by row."""

    def lookup(self, table: Tensor, index: Tensor) -> Tensor:
        """Return the rows `table[index]`: [N, ...] and int64 [T] to [T, ...]."""
        ...

    def embedding(
        self, token_ids: Tensor, weight: Tensor | PackedWeight, dtype: torch.dtype
    ) -> Tensor:
        """Return rows of a weight, [out, in], in a dtype: int64 [T] to [T, in].

        A weight that is not packed has that dtype.
        """
        ...

    def linear(self, x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None) -> Tensor:
        """Return `x @ weight.T + bias`: [T, in], [out, in] and [out] to [T, out].

        Only native operators read packed weights.
        """
        ...

    def add(self, x: Tensor, delta: Tensor) -> Tensor:
        """Return `x + delta`, both of the same shape."""
        ...

    def widen(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return `x` in float32; in `out`, float32 of the same shape, if there is one."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return `x`, [..., size], over its root mean square, times `weight`, [size].

        The mean is taken in float32; the input's precision returns before the weight is
        applied, as in transformers.
        """
        ...

    def add_rms_norm(
        self, x: Tensor, delta: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return `x + delta`, and its norm."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 * size], gate first, to silu(gate) * up, [T, size]."""
        ...

    def prepare_heads(
        self,
        heads: Tensor,
        split: tuple[int, int, int],
        rotation: Rotation,
        norms: HeadNorms | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Norm, if there are norms, and rotate the query and key heads of a projection.

        Args:
            heads: [T, H + 2K, D]: q, then k, then v; the caller does not need it any more.
            split: H, K and K.
            rotation: Of the step's tokens.
            norms: None for most models.

        Returns:
            q, [T, H, D], and k and v, each [T, K, D]; may be views of `heads`.
        """
        ...


class TorchOps:
    """The operators out of plain torch."""

    def lookup(self, table: Tensor, index: Tensor) -> Tensor:
        """See `LayerOps`."""
        return table.index_select(0, index)

    def embedding(
        self, token_ids: Tensor, weight: Tensor | PackedWeight, dtype: torch.dtype
    ) -> Tensor:
        """See `LayerOps`."""
        return self.lookup(_plain(weight), token_ids)

    def linear(self, x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None) -> Tensor:
        """See `LayerOps`."""
        return F.linear(x, _plain(weight), bias)

    def add(self, x: Tensor, delta: Tensor) -> Tensor:
        """See `LayerOps`."""
        return x + delta

    def widen(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """See `LayerOps`."""
        return x.float() if out is None else out.copy_(x)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `LayerOps`."""
        if x.dtype == torch.float32:
            return F.rms_norm(x, weight.shape, weight, eps)
        return weight * F.rms_norm(x.float(), weight.shape, None, eps).to(x.dtype)

    def add_rms_norm(
        self, x: Tensor, delta: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `LayerOps`."""
        total = x + delta
        return total, self.rms_norm(total, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `LayerOps`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def prepare_heads(
        self,
        heads: Tensor,
        split: tuple[int, int, int],
        rotation: Rotation,
        norms: HeadNorms | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `LayerOps`."""
        num_heads, num_kv_heads, _ = split
        qk, v = heads.split((num_heads + num_kv_heads, num_kv_heads), dim=1)
        if norms is not None:
            q, k = qk.split((num_heads, num_kv_heads), dim=1)
            q = self.rms_norm(q, norms.q_weight, norms.eps)
            k = self.rms_norm(k, norms.k_weight, norms.eps)
            qk = torch.cat((q, k), dim=1)
        q, k = rotation.apply(qk).split((num_heads, num_kv_heads), dim=1)
        return q, k, v


def _plain(weight: Tensor | PackedWeight) -> Tensor:
    if isinstance(weight, PackedWeight):
        message = f"A packed weight of {weight.format} came to plain torch, which cannot read it."
        raise InvariantError(message)
    return weight
