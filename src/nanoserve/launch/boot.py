"""The launcher: from options to an engine that can take requests, in named stages.

The only module that knows the concrete classes. It computes no bytes: what is allocated
was decided by `plan`, and what was measured stands beside it in the report.

```
read -> kernels -> plan -> weights -> (compile) -> profile -> pool -> capture -> engine
                   ^                               ^                  ^
                   the device as it is             asked again        and again
```
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from nanoserve.attention.backend import AttentionBackend
from nanoserve.attention.select import select_backend
from nanoserve.engine.engine_core import EngineCore
from nanoserve.engine.step_trace import open_step_trace
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.launch.boot_model import BootModel, read_model
from nanoserve.launch.boot_summary import report_boot, write_report
from nanoserve.launch.capture_stage import prepare_steps, recorder_for
from nanoserve.launch.cpu_kernels import find_kernels, native_steps
from nanoserve.launch.cuda_attention import find_flashinfer
from nanoserve.launch.find_device import device_facts, find_device
from nanoserve.launch.memory_stages import (
    allocate_pool,
    compile_decoder,
    fix_reductions,
    load_decoder,
    profile_step,
)
from nanoserve.launch.output_file import check_writable
from nanoserve.launch.stages import BootListener, SilentListener, Stages
from nanoserve.model.decoder import Decoder
from nanoserve.model.native_ops import NativeOps, select_ops
from nanoserve.options import EngineOptions
from nanoserve.plan.backend_facts import BackendFacts
from nanoserve.plan.boot_checks import check_boot_info
from nanoserve.plan.boot_info import CaptureOutcome, boot_info
from nanoserve.plan.boot_plan import BootPlan, plan_boot
from nanoserve.plan.boot_replan import settle_capture, settle_pool
from nanoserve.plan.boot_report import BootReport
from nanoserve.plan.boot_sizing import step_facts
from nanoserve.runner.device_memory import MemoryProbe, probe_of
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.scheduler import Scheduler
from nanoserve.sched.step_pace import StepPace
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.text.chat_template import ChatTemplate
from nanoserve.text.grammar import LLGuidanceCompiler
from nanoserve.text.grammar_spec import GrammarCompiler
from nanoserve.text.tokenizer import Tokenizer
from nanoserve.units import format_bytes


@dataclass(frozen=True, slots=True)
class BootedEngine:
    """A loaded model with everything a front needs.

    Attributes:
        core: The engine, idle.
        limits: What a request must keep to.
        tokenizer: The model's own.
        chat_template: None where the model has none.
        grammar_compiler: Makes answers follow a grammar; builds nothing before the first.
        model_name: Name of the model as its source gives it.
        plan: What was decided, as it stands once the device was asked again.
        report: What was done.
        info: Both as plain JSON values, checked against themselves.
        probe: Says what the device holds now.
        pool: The KV pool, for who looks into it.
    """

    core: EngineCore
    limits: EngineLimits
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    grammar_compiler: GrammarCompiler
    model_name: str
    plan: BootPlan
    report: BootReport
    info: dict[str, Any]
    probe: MemoryProbe
    pool: KVPool


def boot(options: EngineOptions, listener: BootListener | None = None) -> BootedEngine:
    """Read a model from disk and boot it.

    Args:
        options: What the operator asked for.
        listener: Told of each stage; None tells nobody.

    Raises:
        OptionError: An option cannot work; nothing was loaded.
        ModelError: The model cannot be read or is not supported.
        PlanError: It does not fit.
        BootError: A stage failed for another reason; names the stage.
    """
    check_writable("--boot-report", options.boot_report)
    stages = Stages(listener or SilentListener(), probe_of(find_device(options.device)))
    with stages.run("read") as stage:
        model = read_model(options.model, options.weight_cache_bytes)
        stage.detail = model.describe()
    return boot_model(model, options, stages)


def boot_model(model: BootModel, options: EngineOptions, stages: Stages) -> BootedEngine:
    """Plan, load, profile, allocate, capture and wire an engine, in this order.

    The pool comes after the profile run, which sizes it, and before the capture, whose
    graphs keep its addresses. The engine comes last: nothing steps while shapes are warmed.

    Args:
        model: What to boot.
        options: What the operator asked for; the model's name has no say here.
        stages: Have the probe of the device to run on.

    Raises:
        OptionError: The trace file cannot be written, or an option cannot be kept on this
            device; nothing was loaded.
        KernelError: Native operators were asked for, and cannot serve.
        PlanError: It does not fit.
        BootError: A stage failed for another reason; names the stage.
    """
    trace = None if options.trace_file is None else open_step_trace(options.trace_file)
    device = find_device(options.device)
    kernels = find_kernels(options, model.spec, device, stages)
    backend = _find_backend(model.spec, options, device, kernels, stages)
    step_kernels = native_steps(kernels, options.compile)
    facts = _facts(model, backend, options, is_native=step_kernels is not None)
    ops = select_ops(kernels, is_compiled=options.compile)
    plan = _plan(model, options, facts, isinstance(ops, NativeOps), stages)
    torch.set_num_threads(plan.threads)
    decoder = load_decoder(model, (backend, ops), plan, options.compile, stages)
    if options.compile:
        compile_decoder(decoder, plan, stages)
    if options.deterministic:
        fix_reductions(decoder, plan, stages)
    plan = _settle_pool(decoder, plan, options, stages)
    pool = allocate_pool(decoder, plan, stages)
    plan = _settle_capture(plan, options, facts, stages)
    recorder = recorder_for(plan, model.spec.vocab_size, step_kernels)
    steps = prepare_steps(decoder, pool, plan, options.warm, stages, recorder)
    limits = _limits(model, plan, options)
    runner = ModelRunner(decoder, pool, pool.device, steps.graphs, kernels, steps.mixed)
    scheduler = Scheduler(limits, pace=_pace_for(options, plan))
    core = EngineCore(scheduler, runner, model.tokenizer, trace=trace)
    report = report_boot(plan, stages)
    info = _checked_info(plan, report, steps.outcome)
    write_report(options.boot_report, info)
    return BootedEngine(
        core,
        limits,
        model.tokenizer,
        model.chat_template,
        LLGuidanceCompiler(model.tokenizer, limits.vocab_size, limits.eos_token_ids),
        model.name,
        plan,
        report,
        info,
        stages.probe,
        pool,
    )


def _checked_info(
    plan: BootPlan, report: BootReport, outcome: CaptureOutcome | None
) -> dict[str, Any]:
    info = boot_info(plan, report, outcome)
    check_boot_info(info)
    return info


def _facts(
    model: BootModel, backend: AttentionBackend, options: EngineOptions, *, is_native: bool
) -> BackendFacts:
    return step_facts(
        model.spec,
        backend.depends_on_width,
        backend.arena_bytes,
        options.block_size,
        backend.kv_cache_dtypes,
        options.quantization if is_native else None,
    )


def _find_backend(
    spec: ModelSpec,
    options: EngineOptions,
    device: torch.device,
    kernels: KernelLibrary | None,
    stages: Stages,
) -> AttentionBackend:
    flashinfer = find_flashinfer(options, spec, device, stages)
    return select_backend(spec, device, kernels, options.deterministic, flashinfer)


def _plan(
    model: BootModel,
    options: EngineOptions,
    backend: BackendFacts,
    has_native_ops: bool,
    stages: Stages,
) -> BootPlan:
    with stages.run("plan") as stage:
        stages.probe.settle()
        device = device_facts(find_device(options.device), stages.probe)
        device = replace(device, has_native_ops=has_native_ops)
        plan = plan_boot(model.spec, options, device, backend)
        stage.detail = _describe_plan(plan)
    _note_all(plan.notes, stages)
    return plan


def _settle_pool(
    decoder: Decoder, plan: BootPlan, options: EngineOptions, stages: Stages
) -> BootPlan:
    """Profile the largest step, and plan the pool again from what the device says.

    A CPU's pool follows demand, whatever the peak: there the step, which takes seconds, is
    run only for a report.
    """
    is_cuda = plan.device.kind == "cuda"
    if not is_cuda and options.boot_report is None:
        return plan
    reading, peak_bytes = profile_step(decoder, plan, stages)
    if not is_cuda:
        return plan
    settled = settle_pool(plan, reading, options, peak_bytes)
    _note_all(settled.notes[len(plan.notes) :], stages)
    return settled


def _settle_capture(
    plan: BootPlan, options: EngineOptions, backend: BackendFacts, stages: Stages
) -> BootPlan:
    """Ask the device once the pool is in: what is free now is what capture may take."""
    settled = settle_capture(plan, stages.probe.read(), options, backend)
    _note_all(settled.notes[len(plan.notes) :], stages)
    return settled


def _note_all(notes: tuple[str, ...], stages: Stages) -> None:
    for text in notes:
        stages.listener.note(text)


def _describe_plan(plan: BootPlan) -> str:
    kv = "" if plan.kv_cache_dtype == plan.dtype else f", KV as {plan.kv_cache_dtype}"
    quantization = plan.weights.quantization
    weights = "" if quantization == "none" else f" with {quantization} weights"
    peak_bytes = plan.load.peak_bytes
    loading = f" ({format_bytes(peak_bytes)} to load)" if peak_bytes > plan.planned_bytes else ""
    return (
        f"{plan.dtype}{weights}{kv} on {plan.device.name}, {plan.threads} threads; "
        f"{plan.max_num_seqs} requests "
        f"of {plan.max_model_len:,} tokens; {plan.max_num_batched_tokens:,} tokens a step; "
        f"uses {format_bytes(plan.planned_bytes)}{loading} of "
        f"{format_bytes(plan.device.free_bytes)} free"
    )


def _pace_for(options: EngineOptions, plan: BootPlan) -> StepPace | None:
    if options.target_itl_ms is not None:
        return StepPace(options.target_itl_ms / 1000)
    return StepPace() if plan.device.kind == "cpu" else None


def _limits(model: BootModel, plan: BootPlan, options: EngineOptions) -> EngineLimits:
    return EngineLimits(
        num_blocks=plan.kv_pool.num_blocks,
        block_size=plan.kv_pool.block_size,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        vocab_size=model.spec.vocab_size,
        eos_token_ids=model.stop_token_ids,
        enable_prefix_caching=options.enable_prefix_caching,
    )
