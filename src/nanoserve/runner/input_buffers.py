"""From `BatchLayout` to tensors on the device. Copies; decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanoserve.attention.backend import AttentionInputs
from nanoserve.sched.batch_layout import BatchLayout


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a decoder is called with.

    Attributes:
        token_ids: int64 [T].
        positions: int64 [T].
        attention: Where the tokens lie in the pool.
        logit_rows: int64, one for each request that samples.
    """

    token_ids: Tensor
    positions: Tensor
    attention: AttentionInputs
    logit_rows: Tensor


def build_step_inputs(layout: BatchLayout, device: torch.device) -> StepInputs:
    """Copy `layout` to `device`."""

    def on_device(values: Sequence[object], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return StepInputs(
        token_ids=on_device(layout.token_ids),
        positions=on_device(layout.positions),
        attention=AttentionInputs(
            slot_mapping=on_device(layout.slot_mapping),
            block_tables=on_device(layout.block_tables, torch.int32),
            context_lens=on_device(layout.context_lens, torch.int32),
            query_starts=on_device(layout.query_starts, torch.int32),
            fresh_blocks=on_device(layout.fresh_blocks),
            query_lens=layout.query_lens,
            host_context_lens=layout.context_lens,
            num_decodes=layout.num_decodes,
            block_size=layout.block_size,
        ),
        logit_rows=on_device(layout.logit_rows),
    )
