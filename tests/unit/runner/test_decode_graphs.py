"""`DecodeGraphs` finds a shape for a step, records late, evicts, and knows when to refuse."""

import logging

import pytest
import torch

from nanoserve.runner.decode_graphs import DecodeGraphs
from nanoserve.runner.graph_recorder import GraphRecorder, ReplayRecorder
from nanoserve.sched.batch_layout import BatchLayout
from nanoserve.sched.step import ScheduledRequest, StepExecution, StepMode, StepPlan
from tests.recorders import FullDeviceRecorder, TapeRecorder
from tests.tiny_models import (
    BLOCK_SIZE,
    capture_plan,
    graphs_for,
    random_decoder,
    scheduled,
    tiny_spec,
)

SPEC = tiny_spec(max_position_embeddings=400)
DECODER = random_decoder(SPEC)
BUCKETED, REPLAYED, LATE = StepMode.BUCKETED, StepMode.REPLAYED, StepMode.LATE


def new_graphs(
    recorder: GraphRecorder | None = None, limit: int = 64, widths: tuple[int, ...] = (128,)
) -> DecodeGraphs:
    plan = capture_plan((1, 2, 4), widths, limit)
    return graphs_for(DECODER, plan, recorder, num_blocks=600)


def decodes(*context_lens: int) -> BatchLayout:
    """A step of decodes that end at the given lengths, over blocks of their own."""
    requests = tuple(
        scheduled(
            [3 + row],
            range(120 * row, 120 * row + 100),
            num_computed_tokens=context_len - 1,
            request_id=str(row),
        )
        for row, context_len in enumerate(context_lens)
    )
    return layout_of(*requests)


def layout_of(*requests: ScheduledRequest) -> BatchLayout:
    return BatchLayout.from_step(StepPlan(0, requests), BLOCK_SIZE)


def run(graphs: DecodeGraphs, *context_lens: int) -> StepExecution | None:
    outcome = graphs.run(decodes(*context_lens))
    if outcome is None:
        return None
    assert outcome[0].shape == (len(context_lens), SPEC.vocab_size)
    assert outcome[0].isfinite().all()
    return outcome[1]


def test_without_a_recorder_a_step_is_padded_and_run() -> None:
    """Bucketed steps say how many rows they were padded by, and record nothing."""
    graphs = new_graphs()

    assert run(graphs, 5, 9, 70) == StepExecution(BUCKETED, padded_rows=1)
    assert run(graphs, 5, 9) == StepExecution(BUCKETED, padded_rows=0)
    assert graphs.recorded == ()


def test_a_shape_met_first_is_recorded_late_and_replayed_from_then_on() -> None:
    """The step that records is counted late; the next of its shape is a replay."""
    recorder = TapeRecorder()
    graphs = new_graphs(recorder)

    executions = [run(graphs, *lens) for lens in ((5, 9, 70), (6, 10, 71, 1), (7,))]

    assert executions == [
        StepExecution(LATE, padded_rows=1),
        StepExecution(REPLAYED, padded_rows=0),
        StepExecution(LATE, padded_rows=0),
    ]
    assert recorder.num_records == 2


def test_a_warm_shape_is_replayed_at_once() -> None:
    """Warming records on padding alone; the first real step replays, with its own logits."""
    graphs = new_graphs(TapeRecorder())
    expected = new_graphs().run(decodes(5, 9))

    assert graphs.warm((2, 128))
    outcome = graphs.run(decodes(5, 9))

    assert outcome is not None
    assert expected is not None
    assert outcome[1] == StepExecution(REPLAYED)
    assert torch.equal(outcome[0], expected[0])


def test_warming_touches_no_block_but_the_sink() -> None:
    """After every shape was warmed on padding, the blocks of requests hold what they held."""
    graphs = new_graphs(TapeRecorder())

    for shape in graphs.plan.shapes:
        graphs.warm(shape)

    num_blocks = graphs.pool.num_blocks
    sides = [side for kv in graphs.pool.layers for side in kv]
    assert not any(side[:num_blocks].any() for side in sides)
    assert all(side[num_blocks].any() for side in sides)


def test_a_context_above_the_ceiling_gets_the_next_width() -> None:
    """Wider than the plan and within the served context is a late record of its own."""
    graphs = new_graphs(ReplayRecorder())

    assert run(graphs, 129) == StepExecution(LATE)
    assert run(graphs, 256) == StepExecution(REPLAYED)
    assert run(graphs, 400) == StepExecution(LATE)
    assert graphs.recorded == ((1, 256), (1, 512))


def test_at_the_limit_the_graph_replayed_least_recently_goes() -> None:
    """A third shape at a limit of two evicts the one that waited longest, and says so."""
    graphs = new_graphs(ReplayRecorder(), limit=2)
    for lens in ((5,), (5, 6), (6,)):
        run(graphs, *lens)

    assert run(graphs, 5, 6, 7) == StepExecution(LATE, padded_rows=1, num_evicted=1)
    assert graphs.recorded == ((1, 128), (4, 128))
    assert run(graphs, 7, 8) == StepExecution(LATE, num_evicted=1)
    assert graphs.recorded == ((4, 128), (2, 128))


@pytest.mark.parametrize(
    "layout",
    [
        decodes(5, 6, 7, 8, 9),
        layout_of(scheduled([3], [0, 1], num_computed_tokens=4), scheduled([1, 2], [9])),
        layout_of(scheduled([3], [0, 1], num_computed_tokens=4, scored_token_ids=[5])),
    ],
    ids=["more rows than planned", "a prefill beside a decode", "a scored prompt token"],
)
def test_what_fits_no_shape_is_left_to_the_eager_path(layout: BatchLayout) -> None:
    """Nothing is run or recorded for it."""
    graphs = new_graphs(ReplayRecorder())

    assert graphs.run(layout) is None
    assert graphs.recorded == ()


def test_a_shape_without_memory_is_never_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """It runs eagerly from then on, and so does what is larger; smaller shapes go on."""
    recorder = FullDeviceRecorder(num_failures=1)
    graphs = new_graphs(recorder)

    with caplog.at_level(logging.WARNING):
        assert run(graphs, 5, 6) is None

    assert run(graphs, 7, 8) is None
    assert run(graphs, 5, 6, 7) is None
    assert run(graphs, 200, 6) is None
    assert recorder.num_calls == 1
    assert run(graphs, 9) == StepExecution(LATE)
    assert "2 rows and 128 tokens" in caplog.text


def test_a_bucketed_shape_without_memory_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a recorder too, warming finds what does not fit before a client does."""
    graphs = new_graphs()

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(DECODER, "hidden_states", fail)
        assert not graphs.warm((4, 128))

    assert run(graphs, 5, 6, 7) is None
    assert run(graphs, 5, 6) == StepExecution(BUCKETED)
