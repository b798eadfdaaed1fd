"""Every number of a boot, decided before a byte is loaded."""

from dataclasses import replace

import pytest

from nanoserve.errors import CaptureTooSmall, DoesNotFitError, OptionError
from nanoserve.options import EngineOptions, KVCacheDType
from nanoserve.plan.backend_facts import BackendFacts
from nanoserve.plan.boot_plan import plan_boot, replan_kv_pool
from nanoserve.plan.memory_budget import MemoryReading
from nanoserve.units import GIB, MIB
from tests.plan_cases import CPU, GPU, LLAMA_32_1B, SHARED_GPU, SMOLLM2, gib, with_free

EAGER = EngineOptions(decode_mode="eager")


def test_cpu_defaults() -> None:
    """On a CPU the pool follows demand, and steps run as they come."""
    plan = plan_boot(SMOLLM2, EngineOptions(), CPU)

    assert plan.max_model_len == 2048
    assert plan.max_num_batched_tokens == 512
    assert plan.kv_pool.num_blocks == 8 * 128
    assert (plan.kv_pool.sized_by, plan.kv_pool.num_sink_blocks) == ("demand", 0)
    assert plan.weight_bytes == 134_515_008 * 4 + MIB  # and the rotary table
    assert plan.threads == 2
    assert (plan.decode_mode, plan.capture) == ("eager", None)


def test_gpu_pool_fills_the_device() -> None:
    """On a GPU the pool takes what the utilization leaves, in whole blocks."""
    plan = plan_boot(SMOLLM2, EngineOptions(), GPU)
    pool = plan.kv_pool
    reserve_bytes = gib(24) - int(0.9 * gib(24))

    assert (pool.sized_by, plan.decode_mode, pool.num_sink_blocks) == ("fill", "captured", 1)
    assert plan.max_num_batched_tokens == 2048
    assert pool.reserve_bytes == reserve_bytes
    assert 0 <= gib(23) - reserve_bytes - plan.planned_bytes < pool.block_bytes


def test_captured_steps_are_taken_off_before_the_pool() -> None:
    """What the widest shape needs is a part of its own; a byte count given by hand replaces it."""
    eager = plan_boot(SMOLLM2, EAGER, GPU)
    captured = plan_boot(SMOLLM2, EngineOptions(), GPU)
    by_hand = plan_boot(SMOLLM2, EngineOptions(capture_bytes=GIB), GPU)

    assert captured.capture is not None
    assert captured.kv_pool.capture_bytes == captured.capture.arena_bytes
    assert captured.capture.arena_bytes == 4 * 8 * (2048 * (9 + 2 * 192 + 1) + 49_152)
    assert by_hand.kv_pool.capture_bytes == by_hand.budget.part_bytes("capture") == GIB
    lost_bytes = eager.kv_pool.pool_bytes - by_hand.kv_pool.pool_bytes
    assert abs(lost_bytes - GIB) < eager.kv_pool.block_bytes


ALL_KV = BackendFacts(False, lambda rows, width: 0, kv_cache_dtypes=("auto", "int8", "fp8"))


@pytest.mark.parametrize(("name", "head_bytes"), [("auto", 256), ("int8", 68), ("fp8", 64)])
def test_the_pool_is_planned_as_it_is_stored(name: KVCacheDType, head_bytes: int) -> None:
    """As many blocks, of what a head takes, its scale included; the plan says which."""
    plan = plan_boot(SMOLLM2, EngineOptions(kv_cache_dtype=name), CPU, ALL_KV)

    assert plan.kv_pool.num_blocks == 8 * 128
    assert plan.kv_pool.block_bytes == 16 * 2 * 30 * 3 * head_bytes
    assert plan.kv_cache_dtype == ("float32" if name == "auto" else name)


def test_a_backend_that_cannot_read_the_pool_refuses_it() -> None:
    """Plain torch reads K and V as they are computed; the refusal says what to add."""
    with pytest.raises(OptionError, match=r"--kv-cache-dtype fp8 .* reads auto\. Add --device cpu"):
        plan_boot(SMOLLM2, EngineOptions(kv_cache_dtype="fp8"), GPU)


@pytest.mark.parametrize(("backend", "is_offered"), [(ALL_KV, True), (None, False)])
def test_eight_bits_are_offered_where_they_make_it_fit(
    backend: BackendFacts | None, is_offered: bool
) -> None:
    """K and V as int8 keep the length and the requests; only where attention reads them."""
    fits_as_int8 = EngineOptions(max_num_seqs=100)  # 8.8 GiB of KV in float32, 2.3 as int8

    with pytest.raises(DoesNotFitError) as refusal:
        plan_boot(SMOLLM2, fits_as_int8, with_free(CPU, gib(6)), backend)

    assert ("--kv-cache-dtype int8" in refusal.value.advice) == is_offered


def test_backend_says_what_a_shape_takes() -> None:
    """A kernel that reads lengths from the device is captured at one width."""
    facts = BackendFacts(depends_on_width=False, arena_bytes=lambda rows, width: rows * MIB)
    plan = plan_boot(SMOLLM2, EngineOptions(), GPU, facts)

    assert plan.capture is not None
    assert plan.capture.count == 4
    assert plan.kv_pool.capture_bytes == 8 * MIB


def test_budget_is_the_whole_device() -> None:
    """The parts are what the plan holds, and sum to the device."""
    plan = plan_boot(LLAMA_32_1B, EngineOptions(), GPU)
    budget = plan.budget

    assert budget.total_bytes == sum(part.num_bytes for part in budget.parts) == gib(24)
    assert budget.part_bytes("weights") == plan.weight_bytes
    assert budget.part_bytes("driver context") == GIB
    assert budget.part_bytes("kv pool") == plan.kv_pool.pool_bytes
    assert budget.part_bytes("activations") == plan.activation_bytes
    assert 0 <= budget.part_bytes("unassigned") < plan.kv_pool.block_bytes


def test_what_the_process_held_before_has_a_line() -> None:
    """On a CPU the interpreter's own bytes are neither weights nor others'."""
    reading = MemoryReading(16 * GIB, 12 * GIB, own_bytes=GIB)
    budget = plan_boot(SMOLLM2, EngineOptions(), replace(CPU, reading=reading)).budget

    assert budget.part_bytes("this process at start") == GIB
    assert budget.part_bytes("other processes") == 3 * GIB


def test_demand_on_a_gpu_takes_no_more_than_it_needs() -> None:
    """Who shares a card gets the pool of a CPU boot there."""
    pool = plan_boot(SMOLLM2, replace(EAGER, kv_pool="demand"), GPU).kv_pool

    assert (pool.num_blocks, pool.sized_by, pool.reserve_bytes) == (8 * 128, "demand", 0)


def test_a_cpu_has_nothing_to_fill() -> None:
    """Filling a machine's memory needs a byte count."""
    with pytest.raises(OptionError, match="--kv-cache-bytes"):
        plan_boot(SMOLLM2, EngineOptions(kv_pool="fill"), CPU)

    by_bytes = EngineOptions(kv_pool="fill", kv_cache_bytes=GIB)
    assert plan_boot(SMOLLM2, by_bytes, CPU).kv_pool.sized_by == "kv_cache_bytes"


def test_asked_sizes_are_kept() -> None:
    """A number of blocks or of bytes sizes the pool, in whole blocks, rounded down."""
    by_blocks = plan_boot(SMOLLM2, EngineOptions(num_blocks=200), CPU).kv_pool
    by_bytes = plan_boot(SMOLLM2, EngineOptions(kv_cache_bytes=200 * MIB), CPU).kv_pool
    padded = plan_boot(
        SMOLLM2, EngineOptions(kv_cache_bytes=200 * MIB, decode_mode="bucketed"), CPU
    ).kv_pool

    assert (by_blocks.num_blocks, by_blocks.sized_by) == (200, "num_blocks")
    assert by_bytes.num_blocks == 200 * MIB // by_bytes.block_bytes
    assert padded.num_blocks == by_bytes.num_blocks - 1
    assert padded.pool_bytes <= 200 * MIB


def test_co_tenant_is_refused_by_name() -> None:
    """Others' bytes are named, with the policy and the byte count that would work."""
    options = replace(EAGER, gpu_memory_utilization=0.92, max_model_len=512)
    with pytest.raises(DoesNotFitError, match=r"9\.50 GiB is held by other processes") as caught:
        plan_boot(SMOLLM2, options, SHARED_GPU)

    assert caught.value.advice[0] == "--memory-policy process"
    assert any(advice.startswith("--kv-cache-bytes") for advice in caught.value.advice)
    assert caught.value.budget is not None
    assert caught.value.budget.part_bytes("unassigned") < 0


def test_co_tenant_boots_under_the_other_policy_and_after_others_leave() -> None:
    """Nothing is wrong with this process: its own promise holds beside the others."""
    options = replace(EAGER, gpu_memory_utilization=0.92, max_model_len=512)
    of_process = replace(options, memory_policy="process")
    alone = with_free(SHARED_GPU, SHARED_GPU.free_bytes + gib(5.8))

    assert plan_boot(SMOLLM2, of_process, SHARED_GPU).kv_pool.num_blocks > 0
    assert plan_boot(SMOLLM2, options, alone).kv_pool.num_blocks > 0
    assert plan_boot(SMOLLM2, of_process, alone).kv_pool.num_blocks > 0


def test_pool_under_one_request_stops_the_boot() -> None:
    """A pool that cannot hold one request of max_model_len is refused with what would do."""
    with pytest.raises(DoesNotFitError, match="cannot hold one request") as caught:
        plan_boot(SMOLLM2, EngineOptions(num_blocks=10), CPU)

    assert caught.value.advice == ("--max-model-len 160", "--num-blocks 1024")


def test_demand_over_memory_offers_fewer_requests() -> None:
    """A boot that cannot fit says what weights, pool and activations need."""
    with pytest.raises(DoesNotFitError, match="do not fit together on this CPU") as caught:
        plan_boot(SMOLLM2, EngineOptions(), with_free(CPU, GIB))

    assert caught.value.have_bytes == GIB
    assert caught.value.need_bytes > GIB
    names = {advice.split()[0] for advice in caught.value.advice}
    assert {"--max-model-len", "--max-num-seqs", "--kv-cache-bytes"} <= names


def test_weights_over_memory_are_blamed_alone() -> None:
    """Where not even the weights load, the pool is not the number that broke."""
    with pytest.raises(DoesNotFitError, match="The weights do not fit on this CPU") as caught:
        plan_boot(SMOLLM2, EngineOptions(), with_free(CPU, 100 * MIB))

    assert caught.value.need_bytes == 134_515_008 * 4 + MIB
    assert caught.value.advice == ()


def test_capture_list_under_one_bucket_stops_the_boot() -> None:
    """Every limit that is too low is raised in one advice; the other is to do without."""
    options = EngineOptions(decode_mode="captured", warm_width=64, capture_limit=2)
    with pytest.raises(CaptureTooSmall) as caught:
        plan_boot(SMOLLM2, options, GPU)

    assert "--decode-mode eager" in caught.value.advice
    assert "--warm-width 128 --capture-limit 4" in {
        " ".join(sorted(advice.split(" --"), reverse=True)) and advice
        for advice in caught.value.advice
    }


def test_measured_bytes_resize_a_filling_pool() -> None:
    """After loading, a filling pool takes what is really left, by a measured peak if there is one."""
    plan = plan_boot(SMOLLM2, EngineOptions(), GPU)
    after = MemoryReading(gib(24), gib(20), plan.weight_bytes, GIB)
    pool = replan_kv_pool(plan, after, EngineOptions())
    measured = replan_kv_pool(plan, after, EngineOptions(), activation_bytes=MIB)

    assert pool.reading == after
    assert pool.num_blocks < plan.kv_pool.num_blocks
    assert pool.num_sink_blocks == 1
    freed_bytes = plan.activation_bytes - MIB
    gained = measured.num_blocks - pool.num_blocks
    assert abs(gained - freed_bytes / pool.block_bytes) < 1
    assert measured.activation_bytes == MIB


def test_asked_pools_keep_their_blocks_after_loading() -> None:
    """Only a filling pool is sized again; the others say what the device says now."""
    options = EngineOptions(num_blocks=200)
    plan = plan_boot(SMOLLM2, options, GPU)
    after = MemoryReading(gib(24), GIB, plan.weight_bytes)
    pool = replan_kv_pool(plan, after, options)

    assert (pool.num_blocks, pool.free_after_load) == (200, GIB)


def test_device_that_filled_up_meanwhile_is_refused() -> None:
    """A pool over what is still free is refused with numbers, before the allocator is asked."""
    options = EngineOptions(num_blocks=2000)
    plan = plan_boot(SMOLLM2, options, GPU)
    full = MemoryReading(gib(24), 100 * MIB, plan.weight_bytes)
    with pytest.raises(DoesNotFitError, match="does not fit on a GPU beside") as caught:
        replan_kv_pool(plan, full, options)

    assert caught.value.have_bytes == 100 * MIB
    assert caught.value.budget is not None


def test_filling_pool_with_nothing_left_is_refused() -> None:
    """Others may have come while the weights loaded."""
    plan = plan_boot(SMOLLM2, EngineOptions(), GPU)
    with pytest.raises(DoesNotFitError, match="held by other processes"):
        replan_kv_pool(plan, MemoryReading(gib(24), GIB, plan.weight_bytes), EngineOptions())
