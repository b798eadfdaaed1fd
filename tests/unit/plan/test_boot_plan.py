"""Every number of a boot, decided before a byte is loaded."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.errors import DoesNotFitError
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_plan import DeviceFacts, plan_boot, replan_kv_pool
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import GIB, MIB

SMOLLM2 = ModelSpec(
    architecture="llama",
    num_layers=30,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
CPU = DeviceFacts("cpu", "this CPU", 16 * GIB, 12 * GIB, 2, has_native_bf16=False)
GPU = DeviceFacts("cuda", "a GPU", 24 * GIB, 23 * GIB, 8, has_native_bf16=True)


def test_cpu_defaults() -> None:
    """On a CPU the pool follows demand and the budget is 512 tokens."""
    plan = plan_boot(SMOLLM2, EngineOptions(), CPU)

    assert plan.max_model_len == 2048
    assert plan.max_num_batched_tokens == 512
    assert plan.kv_pool.num_blocks == 8 * 128
    assert plan.kv_pool.sized_by == "demand"
    assert plan.weight_bytes == 134_515_008 * 4
    assert plan.threads == 2


def test_dtype_follows_the_hardware() -> None:
    """Auto is bfloat16 where it is native, and float32 with the reason elsewhere."""
    with_bf16 = plan_boot(SMOLLM2, EngineOptions(), replace(CPU, has_native_bf16=True))
    without = plan_boot(SMOLLM2, EngineOptions(), CPU)
    asked = plan_boot(SMOLLM2, EngineOptions(dtype="bfloat16"), CPU)

    assert (with_bf16.dtype, without.dtype, asked.dtype) == ("bfloat16", "float32", "bfloat16")
    assert "no native bfloat16" in without.notes[0]
    assert with_bf16.kv_pool.pool_bytes * 2 == without.kv_pool.pool_bytes


def test_context_is_clamped_to_the_models() -> None:
    """A context over the model's is clamped, and both numbers are said once."""
    plan = plan_boot(SMOLLM2, EngineOptions(max_model_len=10_000), CPU)

    assert plan.max_model_len == 8192
    assert any("10,000" in note and "8,192" in note for note in plan.notes)


def test_short_model_sets_the_default_context() -> None:
    """The default context is the model's where that is less than 2,048."""
    plan = plan_boot(replace(SMOLLM2, max_position_embeddings=512), EngineOptions(), CPU)

    assert plan.max_model_len == 512
    assert not any("512" in note for note in plan.notes)


def test_budget_is_never_under_the_slots() -> None:
    """The default token budget grows with the slots, so every decode fits in one step."""
    plan = plan_boot(SMOLLM2, EngineOptions(max_num_seqs=600, max_model_len=64), CPU)

    assert plan.max_num_batched_tokens == 600


def test_gpu_pool_fills_the_device() -> None:
    """On a GPU the pool takes what utilization leaves after weights and activations."""
    plan = plan_boot(SMOLLM2, EngineOptions(), GPU)
    used = plan.weight_bytes + plan.activation_bytes + plan.kv_pool.pool_bytes

    assert plan.kv_pool.sized_by == "fill"
    assert plan.max_num_batched_tokens == 2048
    reserve = 24 * GIB - int(0.9 * 24 * GIB)
    assert 0 <= 23 * GIB - reserve - used < plan.kv_pool.block_bytes


def test_measured_free_bytes_resize_a_filling_pool() -> None:
    """After loading, a filling pool is sized again from what is really free."""
    plan = plan_boot(SMOLLM2, EngineOptions(), GPU)
    pool = replan_kv_pool(plan, 20 * GIB, 0.9)

    assert pool.num_blocks < plan.kv_pool.num_blocks
    assert replan_kv_pool(plan_boot(SMOLLM2, EngineOptions(), CPU), 1, 0.9).sized_by == "demand"


def test_asked_sizes_are_kept() -> None:
    """A number of blocks or of bytes sizes the pool, in whole blocks, rounded down."""
    by_blocks = plan_boot(SMOLLM2, EngineOptions(num_blocks=200), CPU).kv_pool
    by_bytes = plan_boot(SMOLLM2, EngineOptions(kv_cache_bytes=200 * MIB), CPU).kv_pool

    assert (by_blocks.num_blocks, by_blocks.sized_by) == (200, "num_blocks")
    assert by_bytes.num_blocks == 200 * MIB // by_bytes.block_bytes


def test_pool_under_one_request_stops_the_boot() -> None:
    """A pool that cannot hold one request of max_model_len is refused with what would do."""
    with pytest.raises(DoesNotFitError) as caught:
        plan_boot(SMOLLM2, EngineOptions(num_blocks=10), CPU)

    assert "--max-model-len 160" in caught.value.advice
    assert "leave out --num-blocks" in caught.value.advice


def test_too_little_memory_names_all_parts() -> None:
    """A boot that cannot fit says what weights, pool and activations need."""
    small = replace(CPU, free_bytes=GIB)
    with pytest.raises(DoesNotFitError, match="do not fit together on this CPU") as caught:
        plan_boot(SMOLLM2, EngineOptions(), small)

    assert caught.value.have_bytes == GIB
    assert caught.value.need_bytes > GIB
    assert caught.value.advice


def test_model_over_memory_has_no_advice() -> None:
    """Where the weights alone are too big, no flag of ours is offered."""
    with pytest.raises(DoesNotFitError) as caught:
        plan_boot(SMOLLM2, EngineOptions(), replace(CPU, free_bytes=100 * MIB))

    assert caught.value.advice == ()


@settings(max_examples=60, deadline=None)
@given(
    free_mib=st.integers(100, 4000),
    max_num_seqs=st.integers(1, 64),
    max_model_len=st.integers(1, 8192),
    num_blocks=st.none() | st.integers(1, 2000),
    device=st.sampled_from([CPU, GPU]),
)
def test_advice_always_fits(
    free_mib: int,
    max_num_seqs: int,
    max_model_len: int,
    num_blocks: int | None,
    device: DeviceFacts,
) -> None:
    """Whatever a refusal advises, doing it makes a plan that fits."""
    facts = replace(device, free_bytes=free_mib * MIB)
    options = EngineOptions(
        max_num_seqs=max_num_seqs, max_model_len=max_model_len, num_blocks=num_blocks
    )
    try:
        plan = plan_boot(SMOLLM2, options, facts)
    except DoesNotFitError as error:
        for advice in error.advice:
            plan = plan_boot(SMOLLM2, _follow(options, advice), facts)
            assert plan.planned_bytes <= facts.free_bytes
    else:
        assert plan.planned_bytes <= facts.free_bytes


def _follow(options: EngineOptions, advice: str) -> EngineOptions:
    flag = re.fullmatch(r"--([a-z-]+) (\d+)", advice)
    if flag is None:
        return replace(options, num_blocks=None, kv_cache_bytes=None)
    name, value = flag[1].replace("-", "_"), int(flag[2])
    if name == "max_num_seqs":
        return replace(options, max_num_seqs=value)
    assert name == "max_model_len"
    return replace(options, max_model_len=value)
