"""The capture stage: what was recorded, what had to be dropped, and who is told."""

import torch

from nanoserve.launch.capture_stage import PreparedSteps, prepare_steps, recorder_for
from nanoserve.launch.cpu_kernels import native_steps
from nanoserve.launch.stages import Stages
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_info import CaptureOutcome
from nanoserve.plan.boot_plan import BootPlan, plan_boot
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.runner.graph_recorder import GraphRecorder, ReplayRecorder
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.native_recorder import NativeRecorder
from nanoserve.units import GIB
from tests.boot_fakes import FakeProbe, RecordingListener
from tests.native_kernels import native_kernels, needs_kernels
from tests.recorders import FullDeviceRecorder
from tests.tiny_models import CPU, random_decoder, tiny_spec

SPEC = tiny_spec()
FACTS = DeviceFacts("cpu", "a CPU", MemoryReading(GIB, GIB), 1, has_native_bf16=False)


def prepare(
    listener: RecordingListener,
    recorder: GraphRecorder | None,
    plan: BootPlan,
    *,
    is_warm: bool = True,
) -> PreparedSteps:
    pool = KVPool(SPEC, plan.kv_pool.num_blocks, 16, torch.float32, CPU, 1)
    stages = Stages(listener, FakeProbe())
    return prepare_steps(random_decoder(SPEC), pool, plan, is_warm, stages, recorder)


def plan_for(**options: object) -> BootPlan:
    return plan_boot(SPEC, EngineOptions(**({"decode_mode": "captured"} | options)), FACTS)  # type: ignore[arg-type]


def test_every_shape_is_recorded_largest_first() -> None:
    """The bar moves with each, and the line says how many of how many."""
    listener = RecordingListener()

    steps = prepare(listener, ReplayRecorder(), plan_for())
    graphs, outcome = steps.graphs, steps.outcome

    assert graphs is not None
    assert outcome is not None
    assert outcome.recorded == ((8, 128), (4, 128), (2, 128), (1, 128))
    assert outcome.is_warm
    assert listener.steps["capture"] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert listener.reports[0].detail.startswith("4 warm; 4 of 4 shapes")
    assert listener.notes == []


def test_failed_records_drop_the_largest_shapes_and_say_so() -> None:
    """The boot goes on with the smaller ones, and the note names what runs eager."""
    listener = RecordingListener()

    outcome = prepare(listener, FullDeviceRecorder(num_failures=2), plan_for()).outcome

    assert outcome is not None
    assert outcome.dropped == ((8, 128), (4, 128))
    assert outcome.recorded == ((2, 128), (1, 128))
    (note,) = listener.notes
    assert "of 4 planned, 2 shapes (4x128, 8x128)" in note
    assert "--warm-width" in note


def test_cold_start_records_nothing() -> None:
    """Told not to warm, the stage allocates buffers alone."""
    steps = prepare(RecordingListener(), ReplayRecorder(), plan_for(), is_warm=False)

    assert steps.graphs is not None
    assert steps.graphs.recorded == ()
    assert steps.mixed is None
    assert steps.outcome == CaptureOutcome((), (), is_warm=False)


def test_eager_plan_has_no_stage() -> None:
    """Where steps run as they come there is nothing to prepare."""
    listener = RecordingListener()

    assert prepare(listener, None, plan_for(decode_mode="eager")) == PreparedSteps()
    assert listener.started == []


def test_recorder_follows_the_mode() -> None:
    """Captured steps of torch on a CPU have the stand-in; bucketed ones are never recorded."""
    assert isinstance(recorder_for(plan_for(), SPEC.vocab_size, None), ReplayRecorder)
    assert recorder_for(plan_for(decode_mode="bucketed"), SPEC.vocab_size, None) is None


@needs_kernels
def test_native_steps_have_a_recorder_of_their_own() -> None:
    """Where a step is native operators alone; not where the layers are compiled."""
    kernels = native_kernels()

    assert isinstance(recorder_for(plan_for(), SPEC.vocab_size, kernels), NativeRecorder)
    assert recorder_for(plan_for(decode_mode="bucketed"), SPEC.vocab_size, kernels) is None
    assert native_steps(kernels, is_compiled=True) is None
