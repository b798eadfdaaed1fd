"""docs/memory.md says what the code computes."""

import re
from dataclasses import replace
from pathlib import Path
from typing import cast

from nanoserve.attention.cpu_backend import CpuAttention
from nanoserve.kernels.kernel_library import KernelLibrary
from nanoserve.options import EngineOptions
from nanoserve.plan.activation_plan import (
    DRAWN_LOGIT_BYTES,
    estimate_activation_bytes,
    largest_step,
)
from nanoserve.plan.boot_plan import BootPlan, plan_boot
from nanoserve.plan.boot_sizing import step_facts, torch_backend_facts
from nanoserve.plan.capture_axes import MIXED_TOKENS
from nanoserve.plan.capture_cost import native_arena_bytes
from nanoserve.plan.capture_plan import CapturePlan, CaptureRequest, plan_capture
from nanoserve.plan.kv_plan import kv_budget_bytes, kv_bytes_per_token
from nanoserve.plan.load_peak import plan_load
from nanoserve.plan.memory_budget import REMAINDER, MemoryReading
from nanoserve.plan.weight_plan import plan_weights
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.spec.param_count import count_parameters
from tests.plan_cases import CPU, GPU, LLAMA_32_1B, SMOLLM2, gib

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"
LINE = re.compile(r"^([a-z0-9_]+\.[a-z0-9_]+) = (.+) = (-?[\d,]+)$", re.MULTILINE)
MATHS = {"int": int, "max": max, "min": min, "__builtins__": {}}


def test_every_line_is_right_and_is_what_the_code_says() -> None:
    """Each worked line gives its number, and the code gives the same."""
    lines = LINE.findall(PAGE.read_text())
    printed = {name: int(number.replace(",", "")) for name, _, number in lines}
    by_hand = {name: eval(expression, MATHS) for name, expression, _ in lines}

    assert by_hand == printed
    computed = smollm2_lines() | native_lines() | llama_lines() | capture_lines() | shared_lines()
    assert printed == computed


def test_every_block_holds_lines_that_are_checked() -> None:
    """No line of a fenced block escapes the pattern."""
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]

    assert [line for line in lines if not LINE.fullmatch(line)] == []


def smollm2_lines() -> dict[str, int]:
    plan = plan_boot(SMOLLM2, EngineOptions(), CPU)
    pool = plan.kv_pool
    head_weights = count_parameters(SMOLLM2).embedding
    lines = {
        "weight_bytes": plan.weight_bytes,
        "layer_weights": count_parameters(SMOLLM2).total
        - count_parameters(SMOLLM2).norms
        - head_weights,
        "head_weights": head_weights,
        "int8_bytes": plan_weights(SMOLLM2, "bfloat16", "int8", is_packed=True).num_bytes,
        "int4_bytes": plan_weights(SMOLLM2, "bfloat16", "int4", is_packed=True).num_bytes,
        **load_lines(SMOLLM2, "measuring_bytes", "packing_bytes", "first_start_bytes"),
        "token_bytes": kv_bytes_per_token(SMOLLM2, 4),
        "int8_token_bytes": kv_bytes_per_token(SMOLLM2, 4, "int8"),
        "fp8_token_bytes": kv_bytes_per_token(SMOLLM2, 4, "fp8"),
        "block_bytes": pool.block_bytes,
        **activation_lines(SMOLLM2, plan, 4, is_fused=True),
        "blocks_per_request": pool.num_blocks // pool.concurrency_at_max_len,
        "num_blocks": pool.num_blocks,
        "pool_bytes": pool.pool_bytes,
        "concurrency_at_max_len": pool.concurrency_at_max_len,
        "planned_bytes": plan.planned_bytes,
    }
    del lines["scores_bytes"]
    return {f"smollm2.{name}": value for name, value in lines.items()}


def load_lines(spec: ModelSpec, *names: str) -> dict[str, int]:
    weights = plan_weights(spec, "bfloat16", "int4", is_packed=True)
    load = plan_load(spec, weights, weights.num_bytes)
    lines = {
        "measuring_bytes": load.measuring_bytes,
        "packing_bytes": load.packing_bytes,
        "first_start_bytes": load.peak_bytes,
    }
    return {name: lines[name] for name in names}


def native_lines() -> dict[str, int]:
    backend = CpuAttention(cast(KernelLibrary, None), SMOLLM2)  # its plan calls no operator
    facts = step_facts(SMOLLM2, False, backend.arena_bytes, block_size=16, native_weights="none")
    partial_bytes = backend.arena_bytes(8, 2048)
    small_vocabulary = replace(SMOLLM2, vocab_size=1)
    return {
        "smollm2.partial_bytes": partial_bytes,
        "smollm2.layer_bytes": native_arena_bytes(
            small_vocabulary, MIXED_TOKENS, 8, partial_bytes, 4
        ),
        "smollm2.head_bytes": native_arena_bytes(SMOLLM2, 0, 8, 0, 4),
        "smollm2.capture_bytes": plan_boot(
            SMOLLM2, EngineOptions(), CPU, facts
        ).kv_pool.capture_bytes,
    }


def llama_lines() -> dict[str, int]:
    context_bytes = gib(0.6)
    reading = MemoryReading(gib(24), gib(24) - context_bytes, context_bytes=context_bytes)
    plan = plan_boot(LLAMA_32_1B, EngineOptions(), replace(GPU, reading=reading))
    pool = plan.kv_pool
    assert pool.reading is not None
    assert pool.bound_by == "slots"
    embedding_bytes = count_parameters(LLAMA_32_1B).embedding * 2
    unassigned_bytes = plan.budget.part_bytes(REMAINDER)
    lines = {
        "weight_bytes": plan.weight_bytes,
        "tied_embedding_bytes": embedding_bytes,
        "tied_embedding_blocks": embedding_bytes // pool.block_bytes,
        **load_lines(LLAMA_32_1B, "measuring_bytes", "packing_bytes"),
        "token_bytes": kv_bytes_per_token(LLAMA_32_1B, 2),
        "int8_token_bytes": kv_bytes_per_token(LLAMA_32_1B, 2, "int8"),
        "fp8_token_bytes": kv_bytes_per_token(LLAMA_32_1B, 2, "fp8"),
        "block_bytes": pool.block_bytes,
        **activation_lines(LLAMA_32_1B, plan, 2, is_fused=False),
        "capture_bytes": pool.capture_bytes,
        "free_after_load": pool.reading.free_bytes,
        "reserve_bytes": pool.reserve_bytes,
        "budget_bytes": pool.pool_bytes + unassigned_bytes,
        "num_blocks": pool.num_blocks,
        "pool_bytes": pool.pool_bytes,
        "unassigned_bytes": unassigned_bytes,
        "concurrency_at_max_len": pool.concurrency_at_max_len,
    }
    return {f"llama.{name}": value for name, value in lines.items()}


def activation_lines(
    spec: ModelSpec, plan: BootPlan, itemsize: int, *, is_fused: bool
) -> dict[str, int]:
    step = largest_step(8, 2048, plan.max_num_batched_tokens, itemsize, is_fused)
    activations = estimate_activation_bytes(spec, step, itemsize, DRAWN_LOGIT_BYTES)
    return {
        "resident_bytes": activations.resident_bytes,
        "scores_bytes": activations.scores_bytes,
        "attention_bytes": activations.scores_bytes + activations.projection_bytes,
        "mlp_bytes": activations.mlp_bytes,
        "logits_bytes": activations.logits_bytes,
        "activation_bytes": plan.activation_bytes,
    }


def capture_lines() -> dict[str, int]:
    def capture_of(max_num_seqs: int) -> CapturePlan:
        facts = torch_backend_facts(LLAMA_32_1B, block_size=16)
        return plan_capture(
            max_num_seqs,
            2048,
            request=CaptureRequest(),
            arena_bytes=facts.arena_bytes,
            depends_on_width=facts.depends_on_width,
        )

    of_8, of_16 = capture_of(8), capture_of(16)
    return {
        "capture.shapes_of_8": of_8.count,
        "capture.shapes_of_16": of_16.full_count,
        "capture.width_of_16": of_16.max_width,
        "capture.kept_of_16": of_16.count,
    }


def shared_lines() -> dict[str, int]:
    reading = MemoryReading(gib(11.63), gib(0.43), gib(1.2))
    return {
        "shared.total_bytes": reading.total_bytes,
        "shared.free_bytes": reading.free_bytes,
        "shared.own_bytes": reading.own_bytes,
        "shared.device_policy_bytes": kv_budget_bytes(reading, 0.92, 0),
        "shared.process_policy_bytes": kv_budget_bytes(reading, 0.92, 0, policy="process"),
    }
