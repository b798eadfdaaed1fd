"""`warm_engine` runs every planned shape once, and says what it could not."""

from nanoserve.plan.boot_info import CaptureOutcome
from nanoserve.runner.graph_recorder import ReplayRecorder
from nanoserve.runner.warm import warm_engine
from tests.recorders import FullDeviceRecorder
from tests.tiny_models import capture_plan, graphs_for, random_decoder, tiny_spec

DECODER = random_decoder(tiny_spec(max_position_embeddings=256))
PLAN = capture_plan((1, 2), (128, 256))


def silent(done: int, total: int) -> None:
    pass


def test_every_shape_is_recorded_largest_first() -> None:
    """The outcome lists the plan's shapes in its order, and progress counts them."""
    graphs = graphs_for(DECODER, PLAN, ReplayRecorder())
    seen: list[tuple[int, int]] = []

    outcome = warm_engine(graphs, lambda done, total: seen.append((done, total)))

    assert outcome == CaptureOutcome(PLAN.shapes, (), is_warm=True, measured_bytes=None)
    assert graphs.recorded == PLAN.shapes == ((2, 256), (2, 128), (1, 256), (1, 128))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_without_a_recorder_shapes_are_run() -> None:
    """Bucketed warming runs each shape and holds nothing."""
    graphs = graphs_for(DECODER, PLAN)

    assert warm_engine(graphs, silent).recorded == PLAN.shapes
    assert graphs.recorded == ()


def test_out_of_memory_drops_the_largest_and_goes_on() -> None:
    """What fitted is recorded, what did not is named, and the boot goes on."""
    graphs = graphs_for(DECODER, PLAN, FullDeviceRecorder(num_failures=2))

    outcome = warm_engine(graphs, silent)

    assert outcome.dropped == ((2, 256), (2, 128))
    assert outcome.recorded == graphs.recorded == ((1, 256), (1, 128))
    assert outcome.is_warm


def test_the_bytes_are_the_difference_of_two_readings() -> None:
    """What recording took is read from the device, before and after."""
    readings = iter([1_000, 5_500])
    graphs = graphs_for(DECODER, PLAN, ReplayRecorder())

    outcome = warm_engine(graphs, silent, allocated_bytes=lambda: next(readings))

    assert outcome.measured_bytes == 4_500
