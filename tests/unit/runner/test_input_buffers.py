"""Tensors of a step hold what the layout says."""

import torch

from nanoserve.runner.input_buffers import build_step_inputs
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import StepPlan
from tests.tiny_models import BLOCK_SIZE, CPU, scheduled


def test_every_field_is_copied_with_its_dtype() -> None:
    """Indices are int64, lengths and tables int32; host copies stay ints."""
    requests = (
        scheduled([7], [3, 4], num_computed_tokens=4, request_id="a"),
        scheduled([8, 9], [1], request_id="b", samples=False),
    )
    layout = BatchLayout.from_step(StepPlan(0, requests), BLOCK_SIZE)

    inputs = build_step_inputs(layout, CPU)

    for tensor, expected, dtype in (
        (inputs.token_ids, [7, 8, 9], torch.int64),
        (inputs.positions, [4, 0, 1], torch.int64),
        (inputs.logit_rows, [0], torch.int64),
        (inputs.attention.slot_mapping, [16, 4, 5], torch.int64),
        (inputs.attention.block_tables, [[3, 4], [1, 1]], torch.int32),
        (inputs.attention.context_lens, [5, 2], torch.int32),
        (inputs.attention.query_starts, [0, 1, 3], torch.int32),
        (inputs.attention.fresh_blocks, [4, 1], torch.int64),
    ):
        assert tensor.tolist() == expected
        assert tensor.dtype == dtype
    assert inputs.attention.query_lens == (1, 2)
    assert inputs.attention.host_context_lens == (5, 2)
    assert (inputs.attention.num_decodes, inputs.attention.block_size) == (1, BLOCK_SIZE)
