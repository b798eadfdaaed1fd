"""This server's own output, rendered by what prints it and read back."""

from dataclasses import replace

import pytest

from nanoserve.errors import DoesNotFitError
from nanoserve.explain.log_format import read_log
from nanoserve.explain.log_text import plain_log
from nanoserve.explain.logged_boot import LoggedBoot
from nanoserve.explain.nanoserve_log import NANOSERVE_LOG
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_info import boot_info, boot_lines
from nanoserve.plan.boot_plan import plan_boot
from nanoserve.plan.boot_report import BootReport, BudgetLine, StageReport
from nanoserve.units import GIB, MIB
from tests.plan_cases import GPU, LLAMA_32_1B, with_free


def read(text: str) -> LoggedBoot:
    return read_log(NANOSERVE_LOG, plain_log(text).text)


def healthy_log() -> str:
    plan = plan_boot(LLAMA_32_1B, EngineOptions(), GPU)
    stages = (
        StageReport("weights", 1.5, "16 layers", plan.weight_bytes, plan.weight_bytes),
        StageReport(
            "pool",
            0.1,
            f"{plan.kv_pool.num_blocks:,} blocks of 16 tokens, 9 requests of 2,048",
            plan.kv_pool.pool_bytes,
            plan.kv_pool.pool_bytes,
        ),
    )
    budget = tuple(BudgetLine(part.name, part.num_bytes) for part in plan.budget.parts)
    lines = [
        "nanoserve 0.3.0",
        *(stage.describe() for stage in stages),
        *boot_lines(boot_info(plan, BootReport(stages, budget), None)),
        "ready in 3.2 s; llama on http://127.0.0.1:8000",
    ]
    return "\n".join(lines)


def test_a_healthy_boot() -> None:
    """Stage lines and the budget table give every figure of the plan."""
    plan = plan_boot(LLAMA_32_1B, EngineOptions(), GPU)
    boot = read(healthy_log())

    assert boot.version == "0.3.0"
    assert boot.model == "llama"
    assert boot.is_ready
    assert boot.num_blocks == plan.kv_pool.num_blocks
    assert (boot.block_size, boot.max_model_len) == (16, 2048)
    assert boot.total_bytes == pytest.approx(GPU.total_bytes, abs=0.01 * GIB)
    assert boot.weight_bytes == pytest.approx(plan.weight_bytes, abs=0.01 * GIB)
    assert boot.pool_bytes == pytest.approx(plan.kv_pool.pool_bytes, abs=0.01 * GIB)
    assert boot.activation_bytes == pytest.approx(plan.activation_bytes, abs=MIB)


def test_a_request_larger_than_the_pool() -> None:
    """The refusal's two sizes and the length that fits are read from its message."""
    options = EngineOptions(max_model_len=131_072, num_blocks=100)
    with pytest.raises(DoesNotFitError) as caught:
        plan_boot(LLAMA_32_1B, options, GPU)

    error = read(f"nanoserve: {caught.value}").error

    assert error is not None
    assert error.kind == "request larger than pool"
    assert error.need_tokens == 131_072
    assert error.need_bytes == pytest.approx(caught.value.need_bytes, abs=0.01 * GIB)
    assert error.have_bytes == pytest.approx(caught.value.have_bytes, abs=MIB)


def test_weights_that_do_not_load() -> None:
    """Weights larger than what is free are refused before the pool is looked at."""
    with pytest.raises(DoesNotFitError) as caught:
        plan_boot(LLAMA_32_1B, EngineOptions(), with_free(GPU, GIB))

    error = read(f"nanoserve 0.3.0\n{caught.value}").error

    assert error is not None
    assert (error.kind, error.stage) == ("out of memory", "weights")
    assert error.need_bytes == pytest.approx(caught.value.need_bytes, abs=0.01 * GIB)


def test_a_log_without_a_table_has_what_the_stages_say() -> None:
    """A cut paste keeps the lines it has."""
    boot = read("weights    1.5 s   2.30 GiB, 16 layers")

    assert boot.weight_bytes == round(2.30 * GIB)
    assert boot == replace(boot, total_bytes=None)
