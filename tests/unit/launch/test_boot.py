"""`boot`: a folder on disk to an engine, or one error that says why not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanoserve.engine.interface import GenerationRequest
from nanoserve.errors import BootError, DoesNotFitError, OptionError
from nanoserve.launch import memory_stages
from nanoserve.launch.boot import BootedEngine, boot, boot_model
from nanoserve.launch.boot_model import read_model
from nanoserve.launch.llm import LLM
from nanoserve.launch.stages import Stages
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_checks import check_boot_info
from nanoserve.plan.boot_report import StageReport
from nanoserve.runner.native_recorder import NativeRecorder, NativeReplay
from nanoserve.sched.sampling_params import SamplingParams
from nanoserve.sched.step import StepMode
from nanoserve.units import GIB, MIB
from tests.boot_fakes import FakeProbe, RecordingListener
from tests.model_folders import write_llama
from tests.native_kernels import FOUND, needs_kernels, needs_native_steps

PROMPTS = ["a", "a longer one", "The quick brown fox", "b" * 40]


class PoolTakesBytes(RecordingListener):
    """Makes a device fuller by its pool, once that is allocated."""

    def __init__(self, probe: FakeProbe) -> None:
        super().__init__()
        self.probe = probe

    def stage_finished(self, report: StageReport) -> None:
        super().stage_finished(report)
        if report.name == "pool":
            self.probe.own_bytes += report.planned_bytes or 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a tiny model's folder: one token per byte, random weights."""
    return write_llama(tmp_path)


def options_for(folder: Path, **changes: Any) -> EngineOptions:
    fields: dict[str, Any] = {
        "model": str(folder),
        "device": "cpu",
        "dtype": "float32",
        "num_blocks": 64,
    }
    return EngineOptions(**(fields | changes))


def booted_on(
    probe: FakeProbe, listener: RecordingListener, options: EngineOptions
) -> BootedEngine:
    return boot_model(read_model(options.model), options, Stages(listener, probe))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_generates_on_the_cpu(folder: Path, dtype: str) -> None:
    """A dtype whose weights cannot be packed runs with them as they lie."""
    llm = LLM(str(folder), device="cpu", dtype=dtype, num_blocks=16)

    (answer,) = llm.generate("a")

    assert len(answer.outputs[0].token_ids) == 16


@needs_kernels
@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
@pytest.mark.parametrize("decode_mode", ["eager", "captured"])
def test_a_pool_of_eight_bits_is_allocated_as_planned(
    folder: Path, kv_cache_dtype: str, decode_mode: str
) -> None:
    """To the byte, sink block included; the report and the plan's line say how it stores."""
    listener = RecordingListener()
    options = options_for(folder, kv_cache_dtype=kv_cache_dtype, decode_mode=decode_mode)

    booted = boot(options, listener)

    assert booted.pool.num_bytes == booted.plan.kv_pool.pool_bytes
    assert booted.info["kv_cache_dtype"] == kv_cache_dtype
    (plan_line,) = (report.detail for report in listener.reports if report.name == "plan")
    assert f"float32, KV as {kv_cache_dtype} on" in plan_line


def test_plain_torch_refuses_a_pool_of_eight_bits(folder: Path) -> None:
    """Before anything is loaded."""
    listener = RecordingListener()

    with pytest.raises(OptionError, match="--kv-cache-dtype int8 is read by native attention"):
        boot(options_for(folder, kv_cache_dtype="int8", attention_backend="torch"), listener)

    assert "weights" not in listener.started


def test_stages_run_in_order_and_carry_their_bytes(folder: Path) -> None:
    """The engine is wired last: nothing can step while shapes are warmed."""
    listener = RecordingListener()

    booted = boot(options_for(folder, decode_mode="captured"), listener)

    assert listener.started == ["read", "kernels", "plan", "weights", "pool", "capture"]
    assert list(booted.report.stages) == listener.reports
    with_bytes = [report.name for report in listener.reports if report.residual_bytes is not None]
    assert with_bytes == ["weights", "pool", "capture"]
    assert listener.steps["weights"][-1][0] == listener.steps["weights"][-1][1]
    num_shapes = len(booted.info["cuda_graphs"]["shapes"])
    assert num_shapes == (4 if FOUND is None else 8)
    assert listener.steps["capture"][-1] == (num_shapes, num_shapes)


def test_capture_is_planned_from_a_device_that_holds_the_pool(folder: Path) -> None:
    """What is free for captured steps was asked after the pool was allocated."""
    probe = FakeProbe(GIB)
    options = options_for(folder, decode_mode="captured", num_blocks=4096)

    booted = booted_on(probe, PoolTakesBytes(probe), options)

    capture = booted.plan.capture
    assert capture is not None
    set_aside = booted.plan.kv_pool.activation_bytes
    assert capture.budget_bytes == GIB - booted.pool.num_bytes - set_aside


@pytest.mark.parametrize("mode", ["bucketed", "captured"])
def test_padded_modes_serve_eager_s_tokens(folder: Path, mode: str) -> None:
    """In float32 every rung of the ladder draws the same tokens, through `LLM`."""
    sampling = [
        SamplingParams(temperature=0.0, max_tokens=4 + 9 * index) for index in range(len(PROMPTS))
    ]

    answers = [
        [
            answer.outputs[0].token_ids
            for answer in LLM(
                str(folder), device="cpu", dtype="float32", num_blocks=64, decode_mode=decode_mode
            ).generate(PROMPTS, sampling)
        ]
        for decode_mode in ("eager", mode)
    ]

    assert answers[0] == answers[1]
    assert [len(token_ids) for token_ids in answers[0]] == [4, 13, 22, 31]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_compiled_boot_serves_eager_s_tokens(folder: Path) -> None:
    """The compiler runs before the pool is taken, not in front of the first client."""
    listener, sampling = RecordingListener(), SamplingParams(temperature=0.0, max_tokens=8)
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_blocks": 64}

    compiled = LLM(str(folder), listener, compile=True, decode_mode="captured", **options)

    assert listener.started == ["read", "kernels", "plan", "weights", "compile", "pool", "capture"]
    answers = [llm.generate(PROMPTS, sampling) for llm in (compiled, LLM(str(folder), **options))]
    assert answers[0] == answers[1]


def test_a_deterministic_boot_checks_that_it_can_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that depend on their number stop the boot; others let it go on."""
    listener = RecordingListener()
    boot(options_for(folder, deterministic=True, decode_mode="eager"), listener)
    assert listener.started == ["read", "kernels", "plan", "weights", "fix", "pool"]

    monkeypatch.setattr(memory_stages, "find_uneven_part", lambda *_: "head")
    with pytest.raises(BootError, match="a row of the head depends on how many rows there are"):
        boot(options_for(folder, deterministic=True))


def test_no_warm_leaves_every_shape_cold_and_says_so(folder: Path) -> None:
    """Nothing is recorded before serving, and the payload does not claim otherwise."""
    booted = boot(options_for(folder, decode_mode="captured", warm=False))

    graphs = booted.info["cuda_graphs"]
    assert graphs["is_warm"] is False
    assert graphs["recorded"] == []
    assert graphs["count"] == (4 if FOUND is None else 8)


@needs_native_steps
@pytest.mark.parametrize("is_warm", [True, False])
def test_recorded_steps_are_measured_where_they_are_planned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_warm: bool
) -> None:
    """The first record takes the block of them all, be it of a step with prompts, too."""
    probe = FakeProbe()
    record = NativeRecorder.record
    records: list[Callable[[], None]] = []

    def record_on_a_block(recorder: NativeRecorder, run: Callable[[], None]) -> NativeReplay:
        if not records:
            probe.own_bytes += 5 * MIB
        records.append(run)
        return record(recorder, run)

    monkeypatch.setattr(NativeRecorder, "record", record_on_a_block)
    options = options_for(folder, decode_mode="captured", warm=is_warm)
    info = booted_on(probe, RecordingListener(), options).info

    measured = {line["name"]: line["measured_bytes"] for line in info["budget"]}
    assert measured["capture"] == 5 * MIB
    assert len(records) == 1 + len(info["cuda_graphs"]["recorded"])
    assert (len(records) > 1) == is_warm


def test_warm_options_shape_the_list(folder: Path) -> None:
    """Rows, width and the number of graphs are the operator's."""
    booted = boot(options_for(folder, cuda_graphs=True, warm_rows=2))

    assert booted.info["cuda_graphs"]["recorded"] == [[2, 128], [1, 128]]
    assert booted.info["decode_mode"] == "captured"


def test_eager_has_no_capture_stage(folder: Path) -> None:
    """Steps run as they come, and no sink block is kept."""
    listener = RecordingListener()

    booted = boot(options_for(folder, decode_mode="eager"), listener)

    assert "capture" not in listener.started
    assert booted.info["cuda_graphs"] is None
    assert booted.pool.num_blocks == 64


@needs_kernels
def test_steps_are_captured_where_native_operators_serve(folder: Path) -> None:
    """By default on a CPU; where torch has a part in the layers they run as they come."""
    native, torch_s = (
        boot(options_for(folder, attention_backend=choice)) for choice in ("auto", "torch")
    )

    assert native.info["decode_mode"] == "captured"
    assert native.pool.sink_block == 64
    assert torch_s.info["decode_mode"] == "eager"


@needs_kernels
def test_decode_steps_of_a_cpu_are_counted_as_replayed(folder: Path) -> None:
    """Whatever their number of rows, from the first one on."""
    booted = boot(options_for(folder))
    sampling = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    for index in range(5):
        booted.core.add(GenerationRequest(f"r{index}", (1 + index, 2, 3), sampling))

    while booted.core.has_work:
        booted.core.step()

    steps = booted.core.snapshot().steps
    assert steps.num_decode_steps == {mode: 8 * (mode is StepMode.REPLAYED) for mode in StepMode}
    assert steps.padded_rows == 0


def test_report_is_written_with_the_peak_measured(folder: Path) -> None:
    """The file is the payload; for it, the largest step is run on the CPU too."""
    path, listener = folder / "report.json", RecordingListener()

    booted = boot(options_for(folder, boot_report=str(path)), listener)

    written = json.loads(path.read_text())
    assert written == json.loads(json.dumps(booted.info))
    check_boot_info(written)
    assert listener.started[:6] == ["read", "kernels", "plan", "weights", "profile", "pool"]
    activations = {line["name"]: line for line in written["budget"]}["activations"]
    assert activations["measured_bytes"] is not None


def test_unwritable_report_is_refused_before_anything_is_read(folder: Path) -> None:
    """The file is tried first, and nothing is left of the trial."""
    listener = RecordingListener()
    path = folder / "missing" / "report.json"

    with pytest.raises(OptionError, match=r"--boot-report .* cannot be written"):
        boot(options_for(folder, boot_report=str(path)), listener)

    assert listener.started == []


def test_pool_that_does_not_fit_is_refused_before_loading(folder: Path) -> None:
    """It exits with 4 and says what would do."""
    listener = RecordingListener()
    options = options_for(folder, num_blocks=None, kv_cache_bytes=2 * GIB)

    with pytest.raises(DoesNotFitError) as caught:
        booted_on(FakeProbe(GIB, own_bytes=100 * MIB), listener, options)

    assert caught.value.exit_code == 4
    assert caught.value.advice
    assert listener.started == ["kernels", "plan"]


def test_budget_has_a_measurement_for_what_can_be_measured(folder: Path) -> None:
    """Weights, pool and this process; a reserve or what nobody claims has none."""
    booted = boot(options_for(folder))

    measured = {line.name: line.measured_bytes is not None for line in booted.report.budget}
    assert measured["weights"]
    assert measured["kv pool"]
    assert measured["this process at start"]
    assert not measured["unassigned"]
    assert not measured["activations"]  # a CPU runs the largest step only for a report
