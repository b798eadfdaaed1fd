"""`BatchLayout`: where every token of a step lies, as plain ints.

Owns the index arithmetic between a `StepPlan` and the paged pool. Knows nothing of
tensors (see `runner.input_buffers`, which only copies) or of what is computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nanoserve.sched.step import ScheduledRequest, StepPlan
from nanoserve.units import ceil_div


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """Rows of one request whose next token is scored.

    Attributes:
        request_index: Which of the plan's requests.
        first_row: Row in the step of its first token.
        token_ids: The token that follows each row, `first_row` onwards.
    """

    request_index: int
    first_row: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The step as one flat run of `T` tokens of `R` requests, in the plan's order.

    ```
    rows            [0 .. num_decodes)   one row for each decode
                    [query_starts[r] .. query_starts[r + 1])   request r
    slots           block_tables[r][position // block_size] * block_size + position % block_size
    ```

    Attributes:
        block_size: Slots in a block.
        token_ids: [T].
        positions: [T], place of each token in its request.
        slot_mapping: [T], place of each token's K and V in the pool.
        query_starts: [R + 1], row at which each request begins; the last is T.
        query_lens: [R], tokens of each request in this step.
        context_lens: [R], tokens of each request in the pool once the step is done.
        block_tables: [R][N_max], blocks up to `context_lens`; a short row is padded with
            its own last block, so that no request ever reads a block it does not own.
        fresh_blocks: Blocks whose first slot is written in this step and whose last is
            not: what lies behind the new tokens belongs to a former owner.
        num_decodes: Leading requests with exactly one token.
        logit_rows: Row of the last token of each request that samples.
        sampling_requests: Index in the plan of the request of each of `logit_rows`.
        scored: One run for each request that scores prompt tokens in this step.
    """

    block_size: int
    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    slot_mapping: tuple[int, ...]
    query_starts: tuple[int, ...]
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]
    fresh_blocks: tuple[int, ...]
    num_decodes: int
    logit_rows: tuple[int, ...]
    sampling_requests: tuple[int, ...]
    scored: tuple[ScoredRun, ...]

    @classmethod
    def from_step(cls, step: StepPlan, block_size: int) -> "BatchLayout":
        """Lay out `step`; time is linear in its tokens and blocks.

        Args:
            step: At least one request; each block table covers its `context_len`.
            block_size: Slots in a block, at least 1.
        """
        scheduled = step.scheduled
        token_ids: list[int] = []
        positions: list[int] = []
        slot_mapping: list[int] = []
        query_starts = [0]
        for request in scheduled:
            token_ids.extend(request.token_ids)
            positions.extend(range(request.num_computed_tokens, request.context_len))
            for slots in _slot_runs(request, block_size):
                slot_mapping.extend(slots)
            query_starts.append(len(token_ids))
        sampling = [index for index, request in enumerate(scheduled) if request.samples]
        return cls(
            block_size=block_size,
            token_ids=tuple(token_ids),
            positions=tuple(positions),
            slot_mapping=tuple(slot_mapping),
            query_starts=tuple(query_starts),
            query_lens=tuple(request.num_scheduled_tokens for request in scheduled),
            context_lens=tuple(request.context_len for request in scheduled),
            block_tables=_padded_tables(scheduled, block_size),
            fresh_blocks=tuple(_fresh_blocks(scheduled, block_size)),
            num_decodes=_count_decodes(scheduled),
            logit_rows=tuple(query_starts[index + 1] - 1 for index in sampling),
            sampling_requests=tuple(sampling),
            scored=tuple(
                ScoredRun(index, query_starts[index], request.scored_token_ids)
                for index, request in enumerate(scheduled)
                if request.scored_token_ids
            ),
        )


def _slot_runs(request: ScheduledRequest, block_size: int) -> Iterator[range]:
    """Yield the slots of the request's tokens in this step, one range for each block."""
    position, end = request.num_computed_tokens, request.context_len
    while position < end:
        block_index, offset = divmod(position, block_size)
        first = request.block_table[block_index] * block_size + offset
        num_slots = min(block_size - offset, end - position)
        yield range(first, first + num_slots)
        position += num_slots


def _padded_tables(
    scheduled: tuple[ScheduledRequest, ...], block_size: int
) -> tuple[tuple[int, ...], ...]:
    tables = [
        request.block_table[: ceil_div(request.context_len, block_size)] for request in scheduled
    ]
    width = max(map(len, tables), default=0)
    return tuple(table + table[-1:] * (width - len(table)) for table in tables)


def _fresh_blocks(scheduled: tuple[ScheduledRequest, ...], block_size: int) -> Iterator[int]:
    for request in scheduled:
        full_blocks, used_slots = divmod(request.context_len, block_size)
        starts_here = full_blocks * block_size >= request.num_computed_tokens
        if used_slots and starts_here:
            yield request.block_table[full_blocks]


def _count_decodes(scheduled: tuple[ScheduledRequest, ...]) -> int:
    for index, request in enumerate(scheduled):
        if request.num_scheduled_tokens != 1:
            return index
    return len(scheduled)
