"""`NativeOps`: a layer's operators on the CPU, each in one call.

Owns the way from tensors to addresses; what is computed is written in `kernels/csrc`. A row
of a result depends on the same row of the arguments alone, bit for bit, whatever the number
of rows or threads.
"""

import torch
from torch import Tensor

from nanoserve.attention.native_result import new_result
from nanoserve.errors import KernelError
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.op_args import (
    AddArgs,
    GatherRowsArgs,
    OpArgs,
    PrepareHeadsArgs,
    RmsNormArgs,
    SiluMulArgs,
    WidenArgs,
    dtype_code,
)
from nanoserve.kernels.packed_args import embedding_args, packed_linear_args
from nanoserve.kernels.packed_weight import PackedWeight, scratch_bytes
from nanoserve.model.layer_ops import HeadNorms, LayerOps, TorchOps
from nanoserve.model.rope import Rotation

MIN_PARALLEL_ELEMENTS = 16384  # a thread needs microseconds to come; so does this much work


class NativeOps:
    """The operators of `LayerOps` on CPU tensors, in every dtype."""

    def __init__(self, kernels: KernelLibrary) -> None:
        self._kernels = kernels

    @property
    def kernels(self) -> KernelLibrary:
        """What they call."""
        return self._kernels

    def lookup(self, table: Tensor, index: Tensor) -> Tensor:
        """See `LayerOps`; the table's rows lie one behind the other."""
        num_rows, row_bytes = len(index), table.stride(0) * table.element_size()
        out = self._new(num_rows, *table.shape[1:], dtype=table.dtype)
        pointers = (table.data_ptr(), index.data_ptr(), out.data_ptr())
        self._run(GatherRowsArgs(*pointers, num_rows, row_bytes), out.numel())
        return out

    def linear(self, x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None) -> Tensor:
        """See `LayerOps`.

        Raises:
            KernelError: The weight is not packed, or has another dtype than `x`.
        """
        x = x.contiguous()
        if not isinstance(weight, PackedWeight):
            message = (
                f"A native product reads packed weights, and this one, {tuple(weight.shape)}, is "
                "not: pack it when it is loaded."
            )
            raise KernelError(message)
        out = self._new(x.shape[0], weight.out_size, dtype=x.dtype)
        scratch = self._new(scratch_bytes(weight, x.shape[0]), dtype=torch.uint8)
        args = packed_linear_args(x, weight, bias, out, scratch)
        self._run(args, weight.out_size * weight.in_size)
        return out

    def add(self, x: Tensor, delta: Tensor) -> Tensor:
        """See `LayerOps`."""
        x, delta = x.contiguous(), delta.contiguous()
        out = self._new(*x.shape, dtype=x.dtype)
        pointers = (x.data_ptr(), delta.data_ptr(), out.data_ptr())
        self._run(AddArgs(*pointers, x.numel(), dtype_code(x.dtype)), x.numel())
        return out

    def widen(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """See `LayerOps`; `out` is contiguous."""
        if out is None and x.dtype == torch.float32:
            return x
        x = x.contiguous()
        if out is None:
            out = self._new(*x.shape, dtype=torch.float32)
        args = WidenArgs(x.data_ptr(), out.data_ptr(), x.numel(), dtype_code(x.dtype))
        self._run(args, x.numel())
        return out

    def embedding(
        self, token_ids: Tensor, weight: Tensor | PackedWeight, dtype: torch.dtype
    ) -> Tensor:
        """See `LayerOps`.

        Raises:
            KernelError: A dense packed weight has another dtype.
        """
        if not isinstance(weight, PackedWeight):
            return self.lookup(weight, token_ids)
        out = self._new(token_ids.shape[0], weight.in_size, dtype=dtype)
        self._run(embedding_args(token_ids.contiguous(), weight, out), out.numel())
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `LayerOps`."""
        x = x.contiguous()
        out = self._new(*x.shape, dtype=x.dtype)
        rows, size = x.numel() // weight.numel(), weight.numel()
        args = RmsNormArgs(
            x.data_ptr(),
            None,
            weight.data_ptr(),
            None,
            out.data_ptr(),
            rows,
            size,
            eps,
            dtype_code(x.dtype),
        )
        self._run(args, x.numel())
        return out

    def add_rms_norm(
        self, x: Tensor, delta: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `LayerOps`."""
        x, delta = x.contiguous(), delta.contiguous()
        total, out = self._new(*x.shape, dtype=x.dtype), self._new(*x.shape, dtype=x.dtype)
        rows, size = x.numel() // weight.numel(), weight.numel()
        args = RmsNormArgs(
            x.data_ptr(),
            delta.data_ptr(),
            weight.data_ptr(),
            total.data_ptr(),
            out.data_ptr(),
            rows,
            size,
            eps,
            dtype_code(x.dtype),
        )
        self._run(args, x.numel())
        return total, out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `LayerOps`."""
        gate_up = gate_up.contiguous()
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = self._new(rows, size, dtype=gate_up.dtype)
        code = dtype_code(gate_up.dtype)
        self._run(
            SiluMulArgs(gate_up.data_ptr(), out.data_ptr(), rows, size, code), gate_up.numel()
        )
        return out

    def prepare_heads(
        self,
        heads: Tensor,
        split: tuple[int, int, int],
        rotation: Rotation,
        norms: HeadNorms | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `LayerOps`; works in place."""
        num_heads, num_kv_heads, _ = split
        args = PrepareHeadsArgs(
            heads=heads.data_ptr(),
            cos=rotation.cos.data_ptr(),
            sin=rotation.sin.data_ptr(),
            rows=heads.shape[0],
            row_stride=heads.stride(0),
            num_q=num_heads,
            num_k=num_kv_heads,
            head_dim=heads.shape[2],
            table_stride=rotation.cos.stride(0),
            dtype=dtype_code(heads.dtype),
        )
        if norms is not None:
            args.q_weight, args.k_weight = norms.q_weight.data_ptr(), norms.k_weight.data_ptr()
            args.eps = norms.eps
        self._run(args, heads.numel())
        q, k, v = heads.split(split, dim=1)
        return q, k, v

    def _new(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return new_result(self._kernels, *shape, dtype=dtype)

    def _run(self, args: OpArgs, num_elements: int) -> None:
        num_threads = torch.get_num_threads() if num_elements >= MIN_PARALLEL_ELEMENTS else 1
        self._kernels.run(args, num_threads)


def select_ops(kernels: KernelLibrary | None, *, is_compiled: bool) -> LayerOps:
    """Return native operators if there are any; a compiler sees into torch's alone."""
    return TorchOps() if kernels is None or is_compiled else NativeOps(kernels)
