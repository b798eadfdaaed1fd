"""`BatchLayout` says where every token of a step lies."""

from nanoserve.sched.batch_layout import BatchLayout, ScoredRun
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import ScheduledRequest, StepPlan


def request(
    num_tokens: int,
    num_computed_tokens: int,
    block_table: tuple[int, ...],
    *,
    samples: bool = True,
    scored_token_ids: tuple[int, ...] = (),
) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=f"r{block_table[0]}",
        token_ids=tuple(range(100, 100 + num_tokens)),
        num_computed_tokens=num_computed_tokens,
        block_table=block_table,
        sampling=SamplingParams(),
        seed=0,
        samples=samples,
        scored_token_ids=scored_token_ids,
    )


def layout_of(*requests: ScheduledRequest) -> BatchLayout:
    return BatchLayout.from_step(StepPlan(0, requests), block_size=4)


def test_tokens_lie_in_the_plan_s_order() -> None:
    """Rows follow the plan; each request's rows are between two neighbouring starts."""
    layout = layout_of(request(1, 9, (5, 2, 7)), request(3, 2, (1, 0)))

    assert layout.token_ids == (100, 100, 101, 102)
    assert layout.positions == (9, 2, 3, 4)
    assert layout.query_starts == (0, 1, 4)
    assert layout.query_lens == (1, 3)
    assert layout.context_lens == (10, 5)


def test_slots_follow_the_block_table() -> None:
    """A token's slot is its block times the block size plus its offset, across blocks."""
    layout = layout_of(request(1, 9, (5, 2, 7)), request(3, 2, (1, 0)))

    assert layout.slot_mapping == (7 * 4 + 1, 1 * 4 + 2, 1 * 4 + 3, 0 * 4 + 0)


def test_short_tables_are_padded_with_their_own_last_block() -> None:
    """No request's table names a block of another one, and unused blocks are cut off."""
    layout = layout_of(request(1, 9, (5, 2, 7, 9)), request(3, 0, (1,)))

    assert layout.block_tables == ((5, 2, 7), (1, 1, 1))


def test_decodes_are_the_leading_requests_of_one_token() -> None:
    """A one-token chunk behind a longer chunk does not count as a decode."""
    layout = layout_of(request(1, 3, (1,)), request(2, 0, (2,)), request(1, 0, (3,)))

    assert layout.num_decodes == 1
    assert layout_of(request(1, 3, (1,)), request(1, 0, (2,))).num_decodes == 2


def test_only_requests_that_sample_have_logit_rows() -> None:
    """The logit row of a request is its last; a chunk in the middle of a prompt has none."""
    layout = layout_of(request(1, 3, (1,)), request(3, 0, (2,), samples=False), request(2, 0, (3,)))

    assert layout.logit_rows == (0, 5)
    assert layout.sampling_requests == (0, 2)


def test_scored_requests_keep_their_first_row_and_targets() -> None:
    """A request that scores its prompt is listed with the row of its first token."""
    layout = layout_of(request(1, 3, (1,)), request(3, 0, (2,), scored_token_ids=(8, 9)))

    assert layout.scored == (ScoredRun(request_index=1, first_row=1, token_ids=(8, 9)),)


def test_a_fresh_block_is_begun_in_this_step_and_not_filled() -> None:
    """Blocks begun earlier and blocks filled to the end are not fresh."""
    begun_earlier = request(1, 5, (0, 1))
    begun_now = request(1, 8, (2, 3, 4))
    filled = request(4, 0, (5,))
    begun_by_a_chunk = request(3, 2, (6, 7))

    layout = layout_of(begun_earlier, begun_now, filled, begun_by_a_chunk)

    assert layout.fresh_blocks == (4, 7)
