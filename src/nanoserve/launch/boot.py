"""The launcher: from options to an engine that can take requests, in named stages.

The only module that knows the concrete classes. It computes no bytes: what is allocated
was decided by `plan.boot_plan`, and what was measured stands beside it in the report.
Stages: read, plan, weights, pool.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from nanoserve.attention.select import select_backend
from nanoserve.engine.engine_core import EngineCore
from nanoserve.engine.step_trace import open_step_trace
from nanoserve.errors import BootError, CorruptFileError, NanoserveError, OptionError
from nanoserve.model.decoder import Decoder
from nanoserve.model.layers import can_prepack, prepack_linears
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_plan import BootPlan, DeviceFacts, plan_boot, replan_kv_pool
from nanoserve.plan.boot_report import BootReport, StageReport
from nanoserve.plan.kv_plan import KVPoolPlan
from nanoserve.runner.device_memory import cuda_memory, has_native_bf16, host_memory_bytes
from nanoserve.runner.kv_pool import KVPool
from nanoserve.runner.model_runner import ModelRunner
from nanoserve.sched.admission import EngineLimits
from nanoserve.sched.scheduler import Scheduler
from nanoserve.spec.checkpoint import Checkpoint, read_checkpoint
from nanoserve.spec.model_dir import resolve_model
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.param_count import count_parameters
from nanoserve.text.chat_template import ChatTemplate
from nanoserve.text.gguf_tokenizer import tokenizer_from_gguf
from nanoserve.text.tokenizer import Tokenizer, tokenizer_from_folder
from nanoserve.units import format_bytes
from nanoserve.weights.loader import load_weights
from nanoserve.weights.placement import place_weights


class BootListener(Protocol):
    """Who is told how the boot goes."""

    def stage_started(self, name: str) -> None:
        """Note that a stage begins."""
        ...

    def progress(self, done: int, total: int) -> None:
        """Note how far the present stage is; units are the stage's own."""
        ...

    def stage_finished(self, report: StageReport) -> None:
        """Note what a stage did."""
        ...

    def note(self, text: str) -> None:
        """Note a choice that was made for the operator, with its reason."""
        ...


class SilentListener:
    """A listener that keeps nothing."""

    def stage_started(self, name: str) -> None:
        """Ignore it."""

    def progress(self, done: int, total: int) -> None:
        """Ignore it."""

    def stage_finished(self, report: StageReport) -> None:
        """Ignore it."""

    def note(self, text: str) -> None:
        """Ignore it."""


@dataclass(frozen=True, slots=True)
class BootedEngine:
    """A loaded model with everything a front needs.

    Attributes:
        core: The engine, idle.
        limits: What a request must keep to.
        tokenizer: The model's own.
        chat_template: None where the model has none.
        model_name: Name of the model as its source gives it.
        plan: What was decided.
        report: What was done.
    """

    core: EngineCore
    limits: EngineLimits
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    model_name: str
    plan: BootPlan
    report: BootReport


@dataclass(slots=True)
class _Stage:
    """What a running stage fills in for its report."""

    detail: str = ""
    planned_bytes: int | None = None
    measured_bytes: int | None = None


@dataclass(slots=True)
class _Stages:
    """Times the stages, tells the listener, keeps the reports."""

    listener: BootListener
    reports: list[StageReport] = field(default_factory=list)

    @contextmanager
    def run(self, name: str) -> Iterator[_Stage]:
        self.listener.stage_started(name)
        started = time.perf_counter()
        stage = _Stage()
        try:
            yield stage
        except NanoserveError:
            raise
        except (RuntimeError, OSError, MemoryError) as error:
            raise BootError(name, f"{type(error).__name__}: {error}") from error
        report = StageReport(
            name,
            time.perf_counter() - started,
            stage.detail,
            stage.planned_bytes,
            stage.measured_bytes,
        )
        self.reports.append(report)
        self.listener.stage_finished(report)


def boot(options: EngineOptions, listener: BootListener | None = None) -> BootedEngine:
    """Plan, load, allocate and wire an engine.

    Args:
        options: What the operator asked for.
        listener: Told of each stage; None tells nobody.

    Raises:
        OptionError: The trace file cannot be written, or the device is not there.
        ModelError: The model cannot be read or is not supported.
        PlanError: It does not fit; nothing was loaded.
        BootError: A stage failed for another reason; names the stage.
    """
    stages = _Stages(listener or SilentListener())
    trace = None if options.trace_file is None else open_step_trace(options.trace_file)
    with stages.run("read") as stage:
        checkpoint = read_checkpoint(resolve_model(options.model))
        tokenizer = _read_tokenizer(checkpoint)
        chat_template = _read_chat_template(tokenizer)
        num_parameters = count_parameters(checkpoint.spec).total
        stage.detail = (
            f"{checkpoint.source.path.name}: {checkpoint.spec.architecture}, "
            f"{num_parameters:,} parameters"
        )
    with stages.run("plan") as stage:
        plan = plan_boot(checkpoint.spec, options, device_facts(options))
        stage.detail = _describe_plan(plan)
    for text in plan.notes:
        stages.listener.note(text)
    device = torch.device(plan.device.kind)
    torch.set_num_threads(plan.threads)
    model = _load_model(checkpoint, plan, device, stages)
    with stages.run("pool") as stage:
        pool_plan = _present_pool_plan(plan, options, device)
        pool = _allocate_pool(checkpoint.spec, plan, pool_plan, device)
        stage.planned_bytes, stage.measured_bytes = plan.kv_pool.pool_bytes, pool.num_bytes
        stage.detail = (
            f"{pool.num_blocks:,} blocks of {pool.block_size} tokens, "
            f"{pool_plan.concurrency_at_max_len:,} requests of {plan.max_model_len:,}"
        )
    limits = _limits(plan, checkpoint, options, pool.num_blocks)
    runner = ModelRunner(model, pool, device)
    core = EngineCore(Scheduler(limits), runner, tokenizer, trace=trace)
    report = BootReport(tuple(stages.reports))
    name = checkpoint.source.display_name
    return BootedEngine(core, limits, tokenizer, chat_template, name, plan, report)


def device_facts(options: EngineOptions) -> DeviceFacts:
    """Ask the machine what there is.

    Raises:
        OptionError: CUDA was asked for and there is none.
    """
    has_cuda = torch.cuda.is_available()
    if options.device == "cuda" and not has_cuda:
        message = (
            "--device is cuda, and torch finds no CUDA device here; leave it out to use the CPU."
        )
        raise OptionError(message)
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if options.device == "cpu" or not has_cuda:
        available_bytes = host_memory_bytes()
        return DeviceFacts(
            "cpu", "this CPU", available_bytes, available_bytes, num_cores or 1, has_native_bf16()
        )
    free_bytes, total_bytes = cuda_memory(torch.device("cuda"))
    name = torch.cuda.get_device_name()
    return DeviceFacts(
        "cuda", name, total_bytes, free_bytes, num_cores or 1, torch.cuda.is_bf16_supported()
    )


def _read_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    path, num_rows = checkpoint.source.path, checkpoint.spec.vocab_size
    if checkpoint.gguf is not None:
        tokenizer = tokenizer_from_gguf(checkpoint.gguf.metadata, str(path))
    else:
        tokenizer = tokenizer_from_folder(path)
    if tokenizer.base_vocab_size > num_rows:  # a token added without a row costs its prompts
        problem = (
            f"the tokenizer has {tokenizer.base_vocab_size:,} tokens and the model "
            f"{num_rows:,}: they do not belong together."
        )
        raise CorruptFileError(str(path), problem)
    return tokenizer


def _read_chat_template(tokenizer: Tokenizer) -> ChatTemplate | None:
    if tokenizer.chat_template is None:
        return None
    return ChatTemplate(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)


def _describe_plan(plan: BootPlan) -> str:
    return (
        f"{plan.dtype} on {plan.device.name}, {plan.threads} threads; {plan.max_num_seqs} requests "
        f"of {plan.max_model_len:,} tokens; {plan.max_num_batched_tokens:,} tokens a step; "
        f"uses {format_bytes(plan.planned_bytes)} of {format_bytes(plan.device.free_bytes)} free"
    )


def _load_model(
    checkpoint: Checkpoint, plan: BootPlan, device: torch.device, stages: _Stages
) -> Decoder:
    """Build the decoder without storage, place each parameter once, stream the weights in."""
    with stages.run("weights") as stage:
        with torch.device("meta"):
            model = Decoder(checkpoint.spec, select_backend(checkpoint.spec, device))
        dtype = getattr(torch, plan.dtype)
        stage.measured_bytes = place_weights(model, device, dtype)
        stage.planned_bytes = plan.weight_bytes
        report = load_weights(model, checkpoint, stages.listener.progress)
        model.build_rope(device, dtype, plan.max_model_len)
        if can_prepack(device, dtype):
            prepack_linears(model)
        stage.detail = f"{report.num_tensors:,} tensors"
    return model


def _present_pool_plan(plan: BootPlan, options: EngineOptions, device: torch.device) -> KVPoolPlan:
    """Return the pool's plan now that the weights are in."""
    if device.type != "cuda":
        return plan.kv_pool
    free_bytes, _ = cuda_memory(device)
    return replan_kv_pool(plan, free_bytes, options.gpu_memory_utilization)


def _allocate_pool(
    spec: ModelSpec, plan: BootPlan, pool_plan: KVPoolPlan, device: torch.device
) -> KVPool:
    """Allocate every block now, so that whatever asks the device next sees them taken."""
    dtype = getattr(torch, plan.dtype)
    return KVPool(spec, pool_plan.num_blocks, pool_plan.block_size, dtype, device)


def _limits(
    plan: BootPlan, checkpoint: Checkpoint, options: EngineOptions, num_blocks: int
) -> EngineLimits:
    return EngineLimits(
        num_blocks=num_blocks,
        block_size=options.block_size,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        vocab_size=checkpoint.spec.vocab_size,
        eos_token_ids=checkpoint.stop_token_ids,
        enable_prefix_caching=options.enable_prefix_caching,
    )
