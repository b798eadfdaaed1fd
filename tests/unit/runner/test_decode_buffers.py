"""`StaticBuffers` pads a decode step to its shape without moving a tensor."""

import pytest
import torch
from torch import Tensor

from nanoserve.errors import InvariantError
from nanoserve.runner.decode_buffers import StaticBuffers
from nanoserve.runner.kv_pool import KVPool
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import StepPlan
from tests.tiny_models import BLOCK_SIZE, CPU, scheduled, tiny_spec

NUM_BLOCKS = 20
SINK = NUM_BLOCKS


def new_pool(num_sink_blocks: int = 1) -> KVPool:
    return KVPool(tiny_spec(), NUM_BLOCKS, BLOCK_SIZE, torch.float32, CPU, num_sink_blocks)


def new_buffers() -> StaticBuffers:
    return StaticBuffers(new_pool(), (4, 24), vocab_size=97)


def two_decodes() -> BatchLayout:
    """A decode in the middle of its third block, and one that begins its second."""
    long = scheduled([11], [7, 3, 9], num_computed_tokens=9, request_id="a")
    short = scheduled([12], [5, 6], num_computed_tokens=4, request_id="b")
    return BatchLayout.from_step(StepPlan(0, (long, short)), BLOCK_SIZE)


def addresses(buffers: StaticBuffers, shape: tuple[int, int]) -> list[int]:
    step = buffers.step(shape)
    tensors = (step.token_ids, step.positions, step.logits, step.attention.slot_mapping)
    tables = (step.attention.block_tables, step.attention.context_lens)
    return [tensor.data_ptr() for tensor in (*tensors, *tables, step.attention.fresh_blocks)]


def test_rows_keep_the_layouts_order_and_padding_follows() -> None:
    """Requests fill the first rows without a hole; the others write token 0 to the sink."""
    buffers = new_buffers()

    buffers.load(two_decodes(), (4, 24))

    step = buffers.step((4, 24))
    sink_slot = SINK * BLOCK_SIZE
    assert step.token_ids.tolist() == [11, 12, 0, 0]
    assert step.positions.tolist() == [9, 4, 0, 0]
    assert step.attention.slot_mapping.tolist() == [9 * 4 + 1, 6 * 4, sink_slot, sink_slot]
    assert step.attention.context_lens.tolist() == [10, 5, 1, 1]
    assert step.attention.fresh_blocks.tolist() == [6, SINK, SINK, SINK]
    assert step.attention.block_tables.tolist() == [
        [7, 3, 9, 9, 9, 9],
        [5, 6, 6, 6, 6, 6],
        [SINK] * 6,
        [SINK] * 6,
    ]


def test_a_smaller_shape_is_the_corner_of_a_larger_one() -> None:
    """A narrow step of two rows reads the first rows and blocks of the same memory."""
    buffers = new_buffers()

    buffers.load(two_decodes(), (2, 12))

    step = buffers.step((2, 12))
    assert step.attention.block_tables.tolist() == [[7, 3, 9], [5, 6, 6]]
    assert step.logits.shape == (2, 97)
    assert addresses(buffers, (2, 12)) == addresses(buffers, (4, 24))


def test_nothing_of_an_earlier_step_is_left() -> None:
    """A step of padding after a full one is padding in every row."""
    buffers = new_buffers()
    buffers.load(two_decodes(), (4, 24))

    buffers.load(None, (4, 24))

    step = buffers.step((4, 24))
    assert step.token_ids.tolist() == step.positions.tolist() == [0] * 4
    assert step.attention.context_lens.tolist() == [1] * 4
    assert step.attention.fresh_blocks.tolist() == [SINK] * 4
    assert step.attention.block_tables.tolist() == [[SINK] * 6] * 4


def test_no_load_moves_a_tensor() -> None:
    """Addresses are those of the first step, whatever is loaded."""
    buffers = new_buffers()
    before = addresses(buffers, (4, 24))

    for layout, shape in ((two_decodes(), (4, 24)), (None, (1, 24)), (two_decodes(), (2, 12))):
        buffers.load(layout, shape)

    assert addresses(buffers, (4, 24)) == before


@pytest.mark.parametrize("name", ["slot_mapping", "fresh_blocks"])
def test_indices_have_the_dtype_that_index_copies_take(name: str) -> None:
    """What indexes the pool in place is int64."""
    index: Tensor = getattr(new_buffers().step((1, 24)).attention, name)

    assert index.dtype == torch.int64


def test_a_pool_without_a_sink_takes_no_padding() -> None:
    """Padding rows would write into a request's block, so the buffers are refused."""
    with pytest.raises(InvariantError, match="no sink block"):
        StaticBuffers(new_pool(num_sink_blocks=0), (4, 24), vocab_size=97)
