"""Slots, rows and tables of a layout agree with the plan they were made from."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepPlan

shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=6)


def step_of(shapes: list[tuple[int, int]], block_size: int, seed: int) -> StepPlan:
    """Return a step over shuffled blocks that no two requests share."""
    blocks = list(range(400))
    random.Random(seed).shuffle(blocks)
    ordered = sorted(shapes, key=lambda shape: shape[0] != 1)
    return StepPlan(
        0,
        tuple(
            ScheduledRequest(
                request_id=str(index),
                token_ids=tuple(range(num_tokens)),
                num_computed_tokens=num_computed,
                block_table=tuple(blocks[index * 60 : index * 60 + 30]),
                sampling=SamplingParams(),
                seed=0,
                samples=True,
            )
            for index, (num_tokens, num_computed) in enumerate(ordered)
        ),
    )


@settings(max_examples=60, deadline=None)
@given(shapes=shapes, block_size=st.sampled_from([1, 2, 4, 16]), seed=st.integers(0, 99))
def test_every_token_has_the_slot_its_table_says(
    shapes: list[tuple[int, int]], block_size: int, seed: int
) -> None:
    """Slots are distinct, and each is the one computed token by token."""
    step = step_of(shapes, block_size, seed)

    layout = BatchLayout.from_step(step, block_size)

    expected = [
        request.block_table[position // block_size] * block_size + position % block_size
        for request in step.scheduled
        for position in range(request.num_computed_tokens, request.context_len)
    ]
    assert list(layout.slot_mapping) == expected
    assert len(set(expected)) == step.num_tokens == layout.query_starts[-1]


@settings(max_examples=60, deadline=None)
@given(shapes=shapes, block_size=st.sampled_from([1, 2, 4, 16]), seed=st.integers(0, 99))
def test_a_step_covers_the_fresh_blocks_and_the_decodes(
    shapes: list[tuple[int, int]], block_size: int, seed: int
) -> None:
    """Unwritten slots of the blocks a step begins are exactly those of its fresh blocks."""
    step = step_of(shapes, block_size, seed)

    layout = BatchLayout.from_step(step, block_size)

    written = set(layout.slot_mapping)
    begun = {slot // block_size for slot in written if slot % block_size == 0}
    unfilled = {
        block
        for block in begun
        if not written.issuperset(range(block * block_size, (block + 1) * block_size))
    }
    assert set(layout.fresh_blocks) == unfilled
    assert layout.num_decodes == sum(length == 1 for length in layout.query_lens)
    assert len({len(table) for table in layout.block_tables}) == 1
