"""What `nanoserve plan` says of our own server is what its boot says, format by format."""

import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nanoserve.attention.cpu_backend import CpuAttention
from nanoserve.capacity.own_formats import find_own_format
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.cli.main import app
from nanoserve.launch.boot import boot
from nanoserve.options import EngineOptions, KVCacheDType, Quantization, ServerOptions
from nanoserve.plan.boot_info import boot_lines
from nanoserve.plan.boot_plan import BootPlan, plan_boot
from nanoserve.plan.boot_sizing import step_facts
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.spec.gpu_spec import custom_gpu
from nanoserve.spec.read_model import read_planned_model
from nanoserve.spec.served_spec import served_spec
from nanoserve.units import GIB, format_bytes
from tests.model_folders import LlamaShape, write_llama
from tests.native_kernels import native_kernels, needs_kernels
from tests.planner import planned as planned_on

FORMATS = list(product(("none", "int8", "int4"), ("auto", "int8", "fp8")))
HOST = replace(
    custom_gpu(16 * GIB, bandwidth_gbps=30),
    name="a machine",
    compute_capability="host",
    host_has=frozenset({"bf16", "native"}),
)
MEMORY_LINES = {"weights": "weights", "activations": "activations", "capture": "recorded steps"}


def planned(model: str, quantization: str, kv_cache_dtype: str, **changes: Any) -> PlanAnswer:
    """Return the planner's answer for our own server on a CPU."""
    query = PlanQuery(
        model=read_planned_model(model),
        gpu=HOST,
        engine="nanoserve",
        weight_format=find_own_format(quantization),
        kv_cache_dtype=kv_cache_dtype,
    )
    return answer(replace(query, **changes))


def part(plan: PlanAnswer, name: str) -> int:
    """Return a part of the planner's division in bytes."""
    return sum(line.size.mid for line in plan.lines if line.name == name)


def booted_plan(plan: PlanAnswer, options: EngineOptions) -> BootPlan:
    """Return what the boot's planner says with the backend that serves, in the same memory."""
    spec = served_spec(plan.query.model)
    backend = CpuAttention(native_kernels(), spec)
    facts = step_facts(
        spec,
        backend.depends_on_width,
        backend.arena_bytes,
        options.block_size,
        backend.kv_cache_dtypes,
        options.quantization,
    )
    held = part(plan, "this process at start")
    reading = MemoryReading(HOST.memory_bytes, HOST.memory_bytes - held, own_bytes=held)
    device = DeviceFacts("cpu", "this CPU", reading, 2, True, has_native_ops=True)
    return plan_boot(spec, options, device, facts)


@needs_kernels
@pytest.mark.parametrize(("quantization", "kv_cache_dtype"), FORMATS)
def test_a_boot_prints_what_was_planned(
    quantization: Quantization,
    kv_cache_dtype: KVCacheDType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights, bytes of a token, pool, recorded steps: of a model that is really booted."""
    monkeypatch.setattr("nanoserve.launch.boot_model.cache_folder", lambda part: tmp_path / part)
    folder = str(write_llama(tmp_path, LlamaShape(intermediate_size=64)))
    plan = planned(folder, quantization, kv_cache_dtype)
    options = EngineOptions(
        folder,
        device="cpu",
        dtype="bfloat16",
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
    )
    info = boot(options).info
    printed = {line.split()[0]: line for line in boot_lines(info)}
    pool = info["kv_pool"]

    assert part(plan, "weights") == info["weight_bytes"]
    assert plan.weight_bytes == sum(one["num_bytes"] for one in info["weights"]["formats"])
    assert plan.kv_facts.token_bytes == pool["block_bytes"] // pool["block_size"]
    assert (plan.pool.mid, plan.tokens.mid) == (pool["pool_bytes"], pool["num_tokens"])
    for name, line in MEMORY_LINES.items():
        assert format_bytes(part(plan, line)) in printed[name]
    peak = plan.stage.load_peak
    assert peak is not None
    assert peak.value == info["load"]["planned_bytes"]
    assert [line for line in boot_lines(info) if line.startswith(f"{peak.name}  ")]


@needs_kernels
@pytest.mark.parametrize(("quantization", "kv_cache_dtype"), FORMATS)
def test_smollm2_is_planned_as_it_boots(
    quantization: Quantization, kv_cache_dtype: KVCacheDType
) -> None:
    """Every part of the default model's boot, to the byte."""
    plan = planned("smollm2", quantization, kv_cache_dtype, max_num_seqs=5, max_model_len=1000)
    options = EngineOptions(
        quantization=quantization, kv_cache_dtype=kv_cache_dtype, max_num_seqs=5, max_model_len=1000
    )
    booted = booted_plan(plan, options)

    assert part(plan, "weights") == booted.weight_bytes
    read = plan.decode[0].formula
    assert read is not None
    assert read.symbols["weight_bytes"] == pytest.approx(booted.weights.num_bytes, abs=1)
    assert plan.kv_facts.token_bytes * 16 == booted.kv_pool.block_bytes
    assert plan.pool.mid == booted.kv_pool.pool_bytes
    assert part(plan, "left over") == booted.budget.part_bytes("unassigned")
    for name, line in MEMORY_LINES.items():
        assert part(plan, line) == booted.budget.part_bytes(name)
    assert plan.stage.load_peak is not None
    assert plan.stage.load_peak.value == booted.load.peak_bytes


@needs_kernels
@pytest.mark.parametrize(("quantization", "kv_cache_dtype"), FORMATS)
def test_the_command_starts_what_was_planned(
    quantization: Quantization, kv_cache_dtype: KVCacheDType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed command, read by the command line, is a boot of the same pool."""
    asked: list[EngineOptions] = []

    def serve(engine: EngineOptions, server: ServerOptions) -> int:
        del server
        asked.append(engine)
        return 0

    monkeypatch.setattr("nanoserve.cli.serve.serve_model", serve)
    plan = planned("smollm2", quantization, kv_cache_dtype, max_num_batched_tokens=256)
    words = shlex.split(plan.command or "")
    result = CliRunner().invoke(app, words[1:])

    assert (words[0], result.exit_code) == ("nanoserve", 0)
    booted = booted_plan(plan, asked[0])
    assert (asked[0].quantization, asked[0].kv_cache_dtype) == (quantization, kv_cache_dtype)
    assert booted.kv_pool.pool_bytes == plan.pool.mid
    assert booted.activation_bytes == part(plan, "activations")


@pytest.mark.parametrize("model_len", [512, 2048])
def test_a_gpus_pool_is_the_boots(model_len: int) -> None:
    """On a GPU all that is left is the pool: whole blocks, a sink block among them."""
    plan = planned_on("llama-3.1-8b", "h100", engine="nanoserve", max_model_len=model_len)
    context = part(plan, "outside the allocator")
    total = plan.stage.total_bytes
    reading = MemoryReading(total, total - context, context_bytes=context)
    device = DeviceFacts("cuda", "a GPU", reading, 2, True)
    booted = plan_boot(
        served_spec(plan.query.model), EngineOptions(max_model_len=model_len), device
    )

    assert plan.pool.mid == booted.kv_pool.pool_bytes
    assert plan.tokens.mid == booted.kv_pool.num_tokens
    assert part(plan, "weights") == booted.weight_bytes
    assert sum(line.size.mid for line in plan.lines) == total
