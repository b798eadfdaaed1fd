"""A stand-in for the FlashInfer library: its calls by the same names, computed by torch.

Checks what the real one checks of its arguments, and keeps to what it promises: a call made
for recorded steps reads its plan from buffers that never move, and `run` looks at the last
plan alone.
"""

from typing import Any

import torch
from torch import Tensor

__version__ = "stand-in"


class _Paged:
    """What both calls share."""

    def __init__(self, workspace: Tensor, kv_layout: str) -> None:
        assert workspace.dtype == torch.uint8
        assert workspace.numel() >= 2**20
        assert kv_layout == "NHD"
        self.num_plans = 0
        self._shape = (0, 0, 0, 0)
        self._window_left = -1
        self._dtype = torch.float16

    def _note(self, heads: tuple[int, int, int], page_size: int, options: dict[str, Any]) -> None:
        self._shape = (*heads, page_size)
        self._window_left = options["window_left"]
        assert options["q_data_type"] == options["kv_data_type"]
        self._dtype = options["q_data_type"]
        self.num_plans += 1

    def _attend(self, q: Tensor, kv: tuple[Tensor, Tensor], pages: Tensor, last_len: int) -> Tensor:
        """Attend with the last rows of a context: [any, H, D]."""
        num_heads, num_kv_heads, head_dim, page_size = self._shape
        assert q.shape[1:] == (num_heads, head_dim)
        assert q.dtype == kv[0].dtype == self._dtype
        assert kv[0].shape[1:] == (page_size, num_kv_heads, head_dim)
        length = (len(pages) - 1) * page_size + last_len
        keys, values = (side[pages.long()].flatten(0, 1)[:length].float() for side in kv)
        group = num_heads // num_kv_heads
        keys, values = (side.repeat_interleave(group, dim=1) for side in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q.float(), keys) / head_dim**0.5
        queries = torch.arange(length - len(q), length)[:, None]
        positions = torch.arange(length)[None]
        hidden = positions > queries
        if self._window_left >= 0:
            hidden |= positions < queries - self._window_left
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)


class BatchDecodeWithPagedKVCacheWrapper(_Paged):
    """One query for each request."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self.use_tensor_cores = use_tensor_cores
        self._buffers: tuple[Tensor, Tensor, Tensor] | None = None
        if use_cuda_graph:
            assert paged_kv_indptr_buffer is not None
            assert paged_kv_indices_buffer is not None
            assert paged_kv_last_page_len_buffer is not None
            assert len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1
            self._buffers = (
                paged_kv_indptr_buffer,
                paged_kv_indices_buffer,
                paged_kv_last_page_len_buffer,
            )
        self._plan: tuple[Tensor, Tensor, Tensor] | None = None

    def reset_workspace_buffer(
        self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor
    ) -> None:
        assert float_workspace_buffer.dtype == int_workspace_buffer.dtype == torch.uint8

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        **options: Any,
    ) -> None:
        self._note((num_qo_heads, num_kv_heads, head_dim), page_size, options)
        _check_pages(indptr, indices, last_page_len, page_size)
        new = (indptr, indices, last_page_len)
        if self._buffers is None:
            self._plan = new
            return
        assert len(last_page_len) == len(self._buffers[2]), "the batch of a recorded step is fixed"
        for buffer, values in zip(self._buffers, new, strict=True):
            buffer[: len(values)].copy_(values)
        self._plan = self._buffers

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        assert self._plan is not None, "run before plan"
        starts, ids, last_lens = self._plan
        assert len(q) == len(last_lens)
        rows = [
            self._attend(
                q[row : row + 1],
                paged_kv_cache,
                ids[starts[row] : starts[row + 1]],
                int(last_lens[row]),
            )
            for row in range(len(q))
        ]
        return torch.cat(rows)


class BatchPrefillWithPagedKVCacheWrapper(_Paged):
    """Several queries for each request, the last of its context."""

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        **options: Any,
    ) -> None:
        assert options["causal"]
        self._note((num_qo_heads, num_kv_heads, head_dim_qk), page_size, options)
        _check_pages(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        assert len(qo_indptr) == len(paged_kv_indptr)
        self._plan = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        queries, starts, ids, last_lens = self._plan
        assert len(q) == queries[-1]
        rows = [
            self._attend(
                q[queries[index] : queries[index + 1]],
                paged_kv_cache,
                ids[starts[index] : starts[index + 1]],
                int(last_lens[index]),
            )
            for index in range(len(last_lens))
        ]
        return torch.cat(rows)


def _check_pages(indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int) -> None:
    for values in (indptr, indices, last_page_len):
        assert values.dtype == torch.int32
    assert indptr[0] == 0
    assert indptr[-1] == len(indices)
    assert (indptr[1:] > indptr[:-1]).all()
    assert ((last_page_len >= 1) & (last_page_len <= page_size)).all()
