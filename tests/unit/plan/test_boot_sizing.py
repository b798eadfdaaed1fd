"""What a boot puts on a device, counted from resolved choices."""

import pytest

from nanoserve.options import EngineOptions
from nanoserve.plan.backend_facts import BackendFacts
from nanoserve.plan.boot_choices import choose
from nanoserve.plan.boot_sizing import (
    activation_bytes_for,
    capture_for,
    plan_room,
    pool_demand,
    step_facts,
    torch_backend_facts,
)
from nanoserve.plan.capture_cost import native_arena_bytes
from nanoserve.units import MIB
from tests.plan_cases import CPU, GPU, SMOLLM2


def test_weights_are_taken_off_before_they_are_loaded() -> None:
    """The room is of the device as it will be."""
    options = EngineOptions()
    room = plan_room(SMOLLM2, options, GPU, choose(SMOLLM2, options, GPU), 0, 0)

    assert room.reading.own_bytes == room.weight_bytes == 134_515_008 * 2 + MIB // 2
    assert room.reading.free_bytes == GPU.free_bytes - room.weight_bytes
    assert room.reading.other_processes_bytes == GPU.reading.other_processes_bytes


def test_nothing_is_kept_back_where_the_utilization_has_no_say() -> None:
    """On a CPU, and for a pool of a size that was asked for, it is no promise."""
    options = EngineOptions(num_blocks=500)

    for device in (CPU, GPU):
        room = plan_room(SMOLLM2, options, device, choose(SMOLLM2, options, device), 0, 0)
        assert room.reserve_bytes == 0


def test_padded_steps_have_a_sink_block() -> None:
    """Padding rows write somewhere no request reads."""
    for mode, count in (("eager", 0), ("bucketed", 1), ("captured", 1)):
        options = EngineOptions(decode_mode=mode)  # type: ignore[arg-type]
        demand = pool_demand(SMOLLM2, options, choose(SMOLLM2, options, CPU))
        assert demand.num_sink_blocks == count


def test_recorded_step_of_torch_holds_scores_copies_and_logits() -> None:
    """Scores of each head, K and V out of the pool, one mask, and a row of logits, in float32."""
    attention_size = 9 + 2 * 192 + 1

    assert torch_backend_facts(SMOLLM2, block_size=16).arena_bytes(8, 2048) == 4 * 8 * (
        2048 * attention_size + 49_152
    )


def test_a_recorded_step_reads_whole_blocks() -> None:
    """A block that is wider than the shape is copied in full."""
    by_block = {size: torch_backend_facts(SMOLLM2, size).arena_bytes for size in (1, 16, 512)}

    assert by_block[1](8, 128) == by_block[16](8, 128)
    assert by_block[512](8, 128) == by_block[16](8, 512)


def test_a_paged_kernel_holds_no_scores() -> None:
    """Plain torch on a GPU is planned with its scores, a kernel that reads lengths without."""
    options = EngineOptions()
    choices = choose(SMOLLM2, options, GPU)
    paged = BackendFacts(depends_on_width=False, arena_bytes=lambda rows, width: 0)
    plain = torch_backend_facts(SMOLLM2, block_size=16)

    assert activation_bytes_for(SMOLLM2, options, GPU, choices, paged) * 4 < activation_bytes_for(
        SMOLLM2, options, GPU, choices, plain
    )


def test_only_what_is_recorded_in_milliseconds_has_close_rows() -> None:
    """Bucketed steps are run once at boot, each in full, so their rows are powers of two."""
    native = step_facts(SMOLLM2, False, lambda rows, width: 0, 16, native_weights="none")
    rows = {}
    for mode in ("captured", "bucketed"):
        options = EngineOptions(max_num_seqs=6, decode_mode=mode)
        capture = capture_for(options, choose(SMOLLM2, options, CPU), native)
        assert capture is not None
        rows[mode] = capture.row_buckets

    assert rows == {"captured": (1, 2, 3, 4, 5, 6), "bucketed": (1, 2, 4, 6)}


@pytest.mark.parametrize(("step_tokens", "planned_for"), [(64, 64), (512, 512), (2048, 512)])
def test_the_arena_is_for_no_larger_steps_than_there_are(
    step_tokens: int, planned_for: int
) -> None:
    """Steps with prompts are recorded up to 512 tokens, and no step holds more than its budget."""
    native = step_facts(SMOLLM2, False, lambda rows, width: 0, 16, native_weights="none")
    options = EngineOptions(
        max_num_seqs=2, decode_mode="captured", max_num_batched_tokens=step_tokens
    )
    choices = choose(SMOLLM2, options, CPU)
    capture = capture_for(options, choices, native)

    assert capture is not None
    results = native_arena_bytes(SMOLLM2, planned_for, 2, 0, choices.itemsize)
    assert capture.arena_bytes == results + 2 * SMOLLM2.vocab_size * 4
