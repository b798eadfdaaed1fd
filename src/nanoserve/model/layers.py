"""The layers a decoder is made of: linear, norm, attention and MLP.

Owns their parameters, named as the checkpoints' with q/k/v and gate/up fused. Knows
nothing of the order of layers (see `decoder`) or of attention itself (see `attention`).
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanoserve.model.layer_ops import HeadNorms, LayerOps, TorchOps
from nanoserve.model.rope import Rotation
from nanoserve.spec.model_spec import ModelSpec

PACK_ROWS_HINT = 8  # rows oneDNN lays the packed weight out for: a full decode batch
_PACK_THREADS = 2  # layers packed at once; first touches of memory are what they wait for


class Linear(nn.Module):
    """`x @ weight.T + bias`, with a weight that can be packed for the CPU.

    The loader puts a `PackedWeight` in the parameter's place where native operators serve.
    """

    def __init__(self, in_features: int, out_features: int, has_bias: bool, ops: LayerOps) -> None:
        super().__init__()
        self._ops = ops
        self.weight: Any = _parameter(out_features, in_features)  # or a `PackedWeight`
        self.bias = _parameter(out_features) if has_bias else None
        self._packed: Tensor | None = None
        self._min_rows = 1

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] to [T, out_features]."""
        num_rows = len(x)
        if num_rows < self._min_rows:
            return self._multiply(F.pad(x, (0, 0, 0, self._min_rows - num_rows)))[:num_rows]
        return self._multiply(x)

    def pad_to(self, min_rows: int) -> None:
        """Multiply at least so many rows from now on, whatever is asked."""
        self._min_rows = min_rows

    def _multiply(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return self._ops.linear(x, self.weight, self.bias)

    def pack(self, is_shared: bool) -> None:
        """Let oneDNN do the product from now on.

        Args:
            is_shared: Somebody else needs the weight as it lies. Otherwise it is
                reordered and the original dropped: there is no `weight` afterwards.
        """
        if is_shared:
            self._packed = self.weight.detach()  # a plain tensor: no second parameter
            return
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, PACK_ROWS_HINT)
        del self.weight


class RMSNorm(nn.Module):
    """Root-mean-square norm, in float32 whatever the input; see `LayerOps.rms_norm`."""

    def __init__(self, size: int, eps: float, ops: LayerOps) -> None:
        super().__init__()
        self.weight = _parameter(size)
        self._eps = eps
        self._ops = ops

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to the same shape and dtype."""
        return self._ops.rms_norm(x, self.weight, self._eps)

    def add(self, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return `x + delta` and its norm, each [..., size]."""
        return self._ops.add_rms_norm(x, delta, self.weight, self._eps)


class Attention(nn.Module):
    """The projections around grouped-query attention."""

    def __init__(self, spec: ModelSpec, ops: LayerOps) -> None:
        super().__init__()
        self._ops = ops
        self._split = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        self._head_dim = spec.head_dim
        self._eps = spec.rms_norm_eps
        fused_size = spec.q_size + 2 * spec.kv_size  # rows of q, then k, then v
        self.qkv_proj = Linear(spec.hidden_size, fused_size, spec.has_qkv_bias, ops)
        self.o_proj = Linear(spec.q_size, spec.hidden_size, spec.has_output_bias, ops)
        self.q_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps, ops) if spec.has_qk_norm else None
        self.k_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps, ops) if spec.has_qk_norm else None

    def project(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """[T, hidden_size] to q, [T, H, D], and k and v, each [T, K, D]; q and k are rotated."""
        heads = self.qkv_proj(x).view(x.shape[0], -1, self._head_dim)  # [T, H + 2K, D]
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self._eps)
        return self._ops.prepare_heads(heads, self._split, rotation, norms)


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`."""

    def __init__(self, spec: ModelSpec, ops: LayerOps) -> None:
        super().__init__()
        self._ops = ops
        hidden_size, intermediate_size = spec.hidden_size, spec.intermediate_size
        self.gate_up_proj = Linear(hidden_size, 2 * intermediate_size, spec.has_mlp_bias, ops)
        self.down_proj = Linear(intermediate_size, hidden_size, spec.has_mlp_bias, ops)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden_size] to the same."""
        return self.down_proj(self._ops.silu_mul(self.gate_up_proj(x)))


def can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `prepack_linears` works for weights of this kind."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32


def gains_by_packing(ops: LayerOps, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN's products of packed weights are faster than those of `ops`.

    Native products have packed weights of their own, except for a CPU's matrix unit (AMX):
    only oneDNN knows of it.
    """
    if not can_prepack(device, dtype):
        return False
    has_matrix_unit = dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    return isinstance(ops, TorchOps) or has_matrix_unit


def prepack_linears(model: nn.Module) -> None:
    """Give every linear layer of `model` to oneDNN, if `can_prepack`.

    Call once, after the weights are in and in their final dtype. A packed weight is no
    parameter: it is neither saved nor moved. A tied head keeps the embedding's layout.

    Measured: AMD EPYC (Zen 3), 2 threads, torch 2.13, float32, 8 rows: 576 to 3072 in 0.7 ms
    against 1.6, a 49,152-row head as it lies in 14 ms against 33.
    """
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    others = [module for module in model.modules() if not isinstance(module, Linear)]
    shared = {id(parameter) for module in others for parameter in module.parameters(recurse=False)}
    with ThreadPoolExecutor(_PACK_THREADS) as threads:
        list(threads.map(lambda linear: linear.pack(id(linear.weight) in shared), linears))


def _parameter(*shape: int) -> nn.Parameter:
    """Allocate a parameter without filling it: the loader does."""
    return nn.Parameter(torch.empty(*shape), requires_grad=False)
