"""`CpuAttention`: paged attention on the CPU by the native operators.

Owns the way from tensors to their addresses; what is computed is written in
`kernels/csrc/attention.cpp`. No slot past a request's context is ever read, so that what
lies there, and whether a block was zeroed, does not matter.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nanoserve.attention.backend import AttentionInputs, DecodeBuffers, HostRows
from nanoserve.attention.native_result import new_result
from nanoserve.errors import KernelError
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.kernels.op_args import PagedAttentionArgs, dtype_code
from nanoserve.plan.native_facts import (
    KV_CACHE_DTYPES,
    PARTITION_KEYS,
    native_shape_problem,
    partials_bytes,
    partials_shape,
)
from nanoserve.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class PreparedCpuStep:
    """What every layer of one step shares.

    Attributes:
        args: The operator's arguments; those of the layer are filled in when it is its turn.
        tensors: What `args` points into.
        num_threads: Threads the step runs on.
    """

    args: PagedAttentionArgs
    tensors: tuple[Tensor, ...]
    num_threads: int


def check_native_shape(spec: ModelSpec) -> None:
    """Check that the native operators serve a model of this shape.

    Raises:
        KernelError: Names what is served and what the model has.
    """
    problem = native_shape_problem(spec)
    if problem is not None:
        raise KernelError(problem)


class CpuAttention:
    """Attention over a paged pool on the CPU, in every dtype, over any pool."""

    def __init__(self, kernels: KernelLibrary, spec: ModelSpec) -> None:
        """Note the shape of the heads.

        Raises:
            KernelError: There is no code for it.
        """
        check_native_shape(spec)
        self._kernels = kernels
        self._num_heads = spec.num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._window = spec.sliding_window or 0

    @property
    def kv_cache_dtypes(self) -> tuple[str, ...]:
        """All there are; which one it is, the pool's tensors say."""
        return KV_CACHE_DTYPES

    @property
    def depends_on_width(self) -> bool:
        """False: lengths are read from memory, wherever block tables end."""
        return False

    def arena_bytes(self, rows: int, width: int) -> int:
        """Return the bytes of the partial results of `rows` contexts of `width` tokens."""
        return partials_bytes(self._num_heads, self._head_dim, rows, width)

    def prepare(self, inputs: AttentionInputs, dtype: torch.dtype) -> PreparedCpuStep:
        """Note the addresses; nothing is computed."""
        args, tensors = self._place(inputs, max(inputs.host_context_lens), dtype)
        args.query_starts = inputs.query_starts.data_ptr()
        return PreparedCpuStep(args, (*tensors, inputs.query_starts), torch.get_num_threads())

    def schedule(self, buffers: DecodeBuffers, rows: HostRows, dtype: torch.dtype) -> None:
        """Nothing to do: lengths are read from memory as the step runs."""

    def prepare_decode(self, buffers: DecodeBuffers, dtype: torch.dtype) -> PreparedCpuStep:
        """Note the addresses; there is room for partial results of the whole width."""
        width = buffers.block_tables.shape[1] * buffers.block_size
        args, tensors = self._place(buffers, width, dtype)
        return PreparedCpuStep(args, tensors, torch.get_num_threads())

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: tuple[Tensor, Tensor], prepared: PreparedCpuStep
    ) -> Tensor:
        """Store this step's K and V, then attend; shapes as `AttentionBackend.attend` says."""
        q, k, v = _with_whole_rows(q), _with_whole_rows(k), _with_whole_rows(v)
        out = new_result(self._kernels, *q.shape, dtype=q.dtype)
        args = prepared.args
        args.q, args.k, args.v, args.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        args.q_stride, args.k_stride, args.v_stride = q.stride(0), k.stride(0), v.stride(0)
        args.k_pool, args.v_pool = kv[0].data_ptr(), kv[1].data_ptr()
        args.kv_dtype = dtype_code(kv[0].dtype)
        args.num_tokens = q.shape[0]
        self._kernels.run(args, prepared.num_threads)
        return out

    def _place(
        self, inputs: AttentionInputs | DecodeBuffers, longest: int, dtype: torch.dtype
    ) -> tuple[PagedAttentionArgs, tuple[Tensor, ...]]:
        """Return the arguments that all layers share, and the tensors they point into."""
        num_requests = inputs.block_tables.shape[0]
        shape = partials_shape(self._num_heads, self._head_dim, num_requests, longest)
        partials = new_result(self._kernels, *shape, dtype=torch.float32)
        args = PagedAttentionArgs(
            slot_mapping=inputs.slot_mapping.data_ptr(),
            block_tables=inputs.block_tables.data_ptr(),
            context_lens=inputs.context_lens.data_ptr(),
            partials=partials.data_ptr(),
            table_stride=inputs.block_tables.stride(0),
            num_requests=num_requests,
            max_partitions=partials.shape[2],
            partition_keys=PARTITION_KEYS,
            num_heads=self._num_heads,
            num_kv_heads=self._num_kv_heads,
            head_dim=self._head_dim,
            block_size=inputs.block_size,
            window=self._window,
            dtype=dtype_code(dtype),
        )
        tensors = (inputs.slot_mapping, inputs.block_tables, inputs.context_lens, partials)
        return args, tensors


def _with_whole_rows(heads: Tensor) -> Tensor:
    """Return `heads`, [T, any, D], such that each token's heads lie one behind the other."""
    head_dim = heads.shape[2]
    return heads if heads.stride()[1:] == (head_dim, 1) else heads.contiguous()
