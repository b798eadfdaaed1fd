"""`FlashInferAttention`: paged attention on CUDA by the FlashInfer library.

Owns the way from a step to the library's plans: which blocks each request reads, as one list
with starts. The library schedules a step on the host and computes it on the device, so a
recorded decode step is planned anew before each replay (see `schedule`); its kernels find
what was planned in buffers that stay where they are.

Source: the API of flashinfer.decode and flashinfer.prefill, 0.2 to 0.6.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nanoserve.attention.backend import AttentionInputs, DecodeBuffers, HostRows
from nanoserve.attention.torch_backend import store_kv
from nanoserve.errors import KernelError
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import MIB, ceil_div

WORKSPACE_BYTES = 128 * MIB  # for results of contexts that are split over blocks of threads
PLAN_BYTES = 8 * MIB  # what a plan is written to; the library's own size
_HEAD_DIMS = (64, 128, 256)
_MIN_TENSOR_CORE_GROUP = 4  # query heads of a KV head from which tensor cores are faster
_LAYOUT = "NHD"  # of a block: tokens, then heads, as `KVPool` has it
_INT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a step that one planned call computes.

    Attributes:
        rows: Where they lie in the step.
        wrapper: The library's planned call.
    """

    rows: slice
    wrapper: Any


@dataclass(frozen=True, slots=True)
class PreparedFlashInferStep:
    """What every layer of one step shares.

    Attributes:
        slot_mapping: int64 [T].
        parts: Decodes, then chunks; either may be missing.
    """

    slot_mapping: Tensor
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Pages:
    """The blocks of some requests as the library takes them, on the host but the ids.

    Attributes:
        starts: int32 [R + 1], where each request's blocks begin in `ids`.
        ids: int32, blocks of all requests in order.
        last_lens: int32 [R], tokens in each request's last block.
    """

    starts: Tensor
    ids: Tensor
    last_lens: Tensor


def load_flashinfer(spec: ModelSpec, dtype: str) -> Any:
    """Return the library, if it is installed and serves the model.

    Args:
        spec: The model.
        dtype: Of the computation.

    Raises:
        KernelError: Says which of them is not so.
    """
    if spec.head_dim not in _HEAD_DIMS:
        sizes = ", ".join(map(str, _HEAD_DIMS))
        message = f"FlashInfer serves heads of {sizes}; this model has {spec.head_dim}."
        raise KernelError(message)
    if dtype not in ("float16", "bfloat16"):
        message = f"FlashInfer computes in float16 and bfloat16; --dtype is {dtype}."
        raise KernelError(message)
    try:
        return importlib.import_module("flashinfer")
    except ImportError as error:
        message = (
            f"FlashInfer is not installed ({error}). Install it: pip install 'nanoserve[cuda]'."
        )
        raise KernelError(message) from error


class FlashInferAttention:
    """Attention over a paged pool by FlashInfer, in float16 or bfloat16."""

    def __init__(self, library: Any, spec: ModelSpec, device: torch.device) -> None:
        """Allocate the workspaces: now, so that whoever plans memory sees them taken.

        Args:
            library: What `load_flashinfer` returns.
            spec: The model.
            device: Where the pool lies.
        """
        self._library = library
        self._spec = spec
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._plan_space = torch.empty(PLAN_BYTES, dtype=torch.uint8, device=device)
        group = spec.num_heads // spec.num_kv_heads
        self._uses_tensor_cores = group >= _MIN_TENSOR_CORE_GROUP
        self._decode = library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, _LAYOUT, use_tensor_cores=self._uses_tensor_cores
        )
        self._prefill = library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, _LAYOUT)
        self._recorded: dict[int, Any] = {}  # wrappers of padded steps, by number of rows

    @property
    def kv_cache_dtypes(self) -> tuple[str, ...]:
        """The compute dtype alone: other pools would be planned with another dtype of K and V."""
        return ("auto",)

    @property
    def depends_on_width(self) -> bool:
        """False: lengths are read from the plan, which lies on the device."""
        return False

    def arena_bytes(self, rows: int, width: int) -> int:
        """Return the bytes of the plan's inputs; blocks are counted as small as they come."""
        return _INT_BYTES * (rows * width + 2 * rows + 1)

    def prepare(self, inputs: AttentionInputs, dtype: torch.dtype) -> PreparedFlashInferStep:
        """Plan the decodes and the chunks of an eager step."""
        num_decodes, num_requests = inputs.num_decodes, len(inputs.query_lens)
        parts = []
        if num_decodes:
            pages = _pages_of(inputs, slice(0, num_decodes))
            self._plan_decode(self._decode, pages, inputs.block_size, dtype)
            parts.append(Part(slice(0, num_decodes), self._decode))
        if num_decodes < num_requests:
            self._plan_prefill(inputs, slice(num_decodes, num_requests), dtype)
            parts.append(Part(slice(num_decodes, sum(inputs.query_lens)), self._prefill))
        return PreparedFlashInferStep(inputs.slot_mapping, tuple(parts))

    def schedule(self, buffers: DecodeBuffers, rows: HostRows, dtype: torch.dtype) -> None:
        """Plan a padded step for the lengths it has this time."""
        num_rows, num_columns = buffers.block_tables.shape
        if num_rows not in self._recorded:
            self._recorded[num_rows] = self._recordable(num_rows, num_rows * num_columns)
        ids = [
            block
            for row, length in enumerate(rows.context_lens)
            for block in rows.table(row)[: ceil_div(length, buffers.block_size)]
        ]
        pages = _pages(rows.context_lens, torch.tensor(ids, dtype=torch.int32), buffers.block_size)
        self._plan_decode(self._recorded[num_rows], pages, buffers.block_size, dtype)

    def prepare_decode(self, buffers: DecodeBuffers, dtype: torch.dtype) -> PreparedFlashInferStep:
        """Take the call that `schedule` has planned; nothing is computed."""
        del dtype
        num_rows = buffers.block_tables.shape[0]
        part = Part(slice(0, num_rows), self._recorded[num_rows])
        return PreparedFlashInferStep(buffers.slot_mapping, (part,))

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv: tuple[Tensor, Tensor],
        prepared: PreparedFlashInferStep,
    ) -> Tensor:
        """Store this step's K and V, then attend; shapes as `AttentionBackend.attend` says."""
        store_kv(kv, (k, v), prepared.slot_mapping, fresh_blocks=None)
        q = q.contiguous()
        if len(prepared.parts) == 1:
            out: Tensor = prepared.parts[0].wrapper.run(q, kv)
            return out
        return torch.cat([part.wrapper.run(q[part.rows], kv) for part in prepared.parts])

    def _recordable(self, num_rows: int, num_blocks: int) -> Any:
        """Return a call whose plans lie at addresses that a recorded step may keep.

        All of them share one space for plans: replays run one at a time, each planned first.
        """
        device = self._workspace.device
        wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            _LAYOUT,
            use_cuda_graph=True,
            use_tensor_cores=self._uses_tensor_cores,
            paged_kv_indptr_buffer=torch.zeros(num_rows + 1, dtype=torch.int32, device=device),
            paged_kv_indices_buffer=torch.zeros(num_blocks, dtype=torch.int32, device=device),
            paged_kv_last_page_len_buffer=torch.ones(num_rows, dtype=torch.int32, device=device),
        )
        wrapper.reset_workspace_buffer(self._workspace, self._plan_space)
        return wrapper

    def _plan_decode(
        self, wrapper: Any, pages: _Pages, block_size: int, dtype: torch.dtype
    ) -> None:
        wrapper.plan(
            pages.starts,
            pages.ids,
            pages.last_lens,
            self._spec.num_heads,
            self._spec.num_kv_heads,
            self._spec.head_dim,
            block_size,
            window_left=self._window_left(),
            q_data_type=dtype,
            kv_data_type=dtype,
        )

    def _plan_prefill(self, inputs: AttentionInputs, requests: slice, dtype: torch.dtype) -> None:
        pages = _pages_of(inputs, requests)
        self._prefill.plan(
            _starts(inputs.query_lens[requests]),
            pages.starts,
            pages.ids,
            pages.last_lens,
            self._spec.num_heads,
            self._spec.num_kv_heads,
            self._spec.head_dim,
            inputs.block_size,
            causal=True,
            window_left=self._window_left(),
            q_data_type=dtype,
            kv_data_type=dtype,
        )

    def _window_left(self) -> int:
        """The library counts the tokens before a query that it sees; -1 is all."""
        window = self._spec.sliding_window
        return -1 if window is None else window - 1


def _pages_of(inputs: AttentionInputs, requests: slice) -> _Pages:
    """Take the blocks of some requests out of padded tables, without waiting for the device."""
    lens = inputs.host_context_lens[requests]
    tables = inputs.block_tables[requests]
    num_columns = tables.shape[1]
    places = [
        row * num_columns + column
        for row, length in enumerate(lens)
        for column in range(ceil_div(length, inputs.block_size))
    ]
    ids = tables.reshape(-1).index_select(0, torch.tensor(places, device=tables.device))
    return _pages(lens, ids, inputs.block_size)


def _pages(lens: Sequence[int], ids: Tensor, block_size: int) -> _Pages:
    last_lens = [(length - 1) % block_size + 1 for length in lens]
    starts = _starts([ceil_div(length, block_size) for length in lens])
    return _Pages(starts, ids, torch.tensor(last_lens, dtype=torch.int32))


def _starts(counts: Sequence[int]) -> Tensor:
    """Return where each of `counts` things begins, and where the last ends: int32."""
    starts = torch.zeros(len(counts) + 1, dtype=torch.int32)
    torch.cumsum(torch.tensor(counts, dtype=torch.int32), 0, dtype=torch.int32, out=starts[1:])
    return starts
