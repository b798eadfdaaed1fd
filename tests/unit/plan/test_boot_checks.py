"""Each gate lets a sound boot through and refuses each way of being unsound."""

from typing import Any

import pytest

from nanoserve.errors import BootUnsound
from nanoserve.plan.boot_checks import (
    BufferShape,
    DecodeWindow,
    PoolShape,
    check_all_shapes_captured,
    check_boot_info,
    check_capture_limit,
    check_capture_matches_cache,
    check_replays_dominate,
    check_warm_before_serving,
)
from nanoserve.plan.capture_plan import CapturePlan, CaptureRequest, plan_capture

POOL = PoolShape(num_blocks=64, block_size=16, sink_block=64)
BUFFERS = {"num_rows": 4, "num_blocks": 16, "block_size": 16, "sink_block": 64}


def capture_plan() -> CapturePlan:
    """Return 3 row buckets by 2 widths: 4 rows of 256 tokens is the widest."""
    return plan_capture(
        4,
        256,
        request=CaptureRequest(limit=8),
        arena_bytes=lambda rows, width: rows * width,
        depends_on_width=True,
    )


def payload() -> dict[str, Any]:
    """Return the parts of a sound payload that the check reads."""
    plan = capture_plan()
    return {
        "device": {"total_bytes": 1000},
        "decode_mode": "captured",
        "max_num_seqs": 4,
        "kv_pool": {
            "num_blocks": 9,
            "num_sink_blocks": 1,
            "block_bytes": 50,
            "pool_bytes": 500,
            "concurrency_at_max_len": 4,
            "bound_by": "slots",
        },
        "cuda_graphs": {
            **plan.as_dict(),
            "is_warm": True,
            "recorded": [list(shape) for shape in plan.shapes],
            "dropped": [],
        },
        "budget": [
            {
                "name": "kv pool",
                "planned_bytes": 500,
                "measured_bytes": 510,
                "residual_bytes": 10,
            },
            {
                "name": "unassigned",
                "planned_bytes": 500,
                "measured_bytes": None,
                "residual_bytes": None,
            },
        ],
    }


def test_warming_beside_a_running_loop_is_refused() -> None:
    """Two writers on one buffer are refused; warming first is not."""
    check_warm_before_serving(is_loop_running=False)

    with pytest.raises(BootUnsound, match="Warm first"):
        check_warm_before_serving(is_loop_running=True)


def test_buffers_of_this_plan_and_pool_pass() -> None:
    """Buffers may be larger than the widest shape."""
    check_capture_matches_cache(capture_plan(), BufferShape(**BUFFERS), POOL)
    check_capture_matches_cache(capture_plan(), BufferShape(8, 32, 16, 64), POOL)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_rows": 3}, "hold 3 rows of 256 tokens and the widest shape is 4 rows of 256"),
        ({"num_blocks": 15}, "hold 4 rows of 240 tokens"),
        ({"block_size": 32}, "count 32 slots in a block and the pool 16"),
        ({"sink_block": 65}, "write to block 65 and the pool's sink is block 64"),
    ],
)
def test_buffers_of_another_pool_are_refused(changes: dict[str, int], problem: str) -> None:
    """Too few rows, too few blocks, another block size or another sink."""
    with pytest.raises(BootUnsound, match=problem):
        check_capture_matches_cache(capture_plan(), BufferShape(**(BUFFERS | changes)), POOL)


def test_a_sink_that_a_request_may_hold_is_refused() -> None:
    """Padding rows would write over a request's tokens."""
    buffers = BufferShape(**(BUFFERS | {"sink_block": 63}))

    with pytest.raises(BootUnsound, match="which a request may hold"):
        check_capture_matches_cache(capture_plan(), buffers, PoolShape(64, 16, 63))


def test_more_graphs_than_the_limit_are_refused() -> None:
    """The limit itself is allowed."""
    check_capture_limit(capture_plan(), 8)

    with pytest.raises(BootUnsound, match="9 graphs are held and --capture-limit is 8"):
        check_capture_limit(capture_plan(), 9)


def test_cold_shapes_are_refused_by_name() -> None:
    """Every planned shape is recorded before serving, or the missing ones are named."""
    plan = capture_plan()
    check_all_shapes_captured(plan, plan.shapes)

    with pytest.raises(BootUnsound, match=r"2 shapes \(1x128, 2x128\) planned and not recorded"):
        check_all_shapes_captured(plan, plan.shapes[:-2])
    with pytest.raises(BootUnsound, match=r"6 shapes \(1x128, .* and 1 more\)"):
        check_all_shapes_captured(plan, ())


def test_one_percent_of_missed_steps_is_allowed() -> None:
    """Ten of a thousand pass, and eleven are a sentence with the numbers."""
    assert check_replays_dominate(DecodeWindow(1000, 990, 0, 4, 6)) is None

    reason = check_replays_dominate(DecodeWindow(1000, 989, 0, 4, 7))
    assert reason is not None
    assert "11 of the last 1,000 decode steps were not replayed" in reason
    assert "4 ran eager and 7 were captured late" in reason


def test_a_young_window_is_judged_by_its_own_steps() -> None:
    """No steps are no reason, one late step of the first ten is."""
    assert check_replays_dominate(DecodeWindow(0, 0, 0, 0, 0)) is None
    assert check_replays_dominate(DecodeWindow(10, 0, 10, 0, 0)) is None
    assert check_replays_dominate(DecodeWindow(10, 9, 0, 0, 1)) is not None


def test_a_sound_payload_passes() -> None:
    """Warm with all shapes recorded, with one dropped, or cold and saying so."""
    warm, dropped, cold, eager = payload(), payload(), payload(), payload()
    dropped["cuda_graphs"]["dropped"] = [dropped["cuda_graphs"]["recorded"].pop()]
    cold["cuda_graphs"] |= {"is_warm": False, "recorded": []}
    eager |= {"decode_mode": "eager", "cuda_graphs": None}

    for info in (warm, dropped, cold, eager):
        check_boot_info(info)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("kv_pool.pool_bytes", 450, "pool is 450 bytes and 10 blocks of 50 are 500"),
        ("kv_pool.bound_by", "pool", "bound by the pool, and the pool holds 4 of 4"),
        ("kv_pool.concurrency_at_max_len", 3, "bound by the slots, and the pool holds 3 of 4"),
        ("device.total_bytes", 1001, "sum to 1,000 bytes and the device has 1,001"),
        ("budget.0.residual_bytes", 9, "510 bytes measured less 500 planned is not 9"),
        ("decode_mode", "eager", "decode mode eager has 6 shapes"),
        ("cuda_graphs", None, "decode mode captured has no shapes"),
        ("cuda_graphs.recorded", [[4, 256]], "5 shapes .* planned and not recorded"),
        ("cuda_graphs.dropped", [[4, 256]], r"1 shape \(4x256\) both recorded and dropped"),
        ("cuda_graphs.dropped", [[9, 9]], r"1 shape \(9x9\) recorded or dropped and never"),
        ("cuda_graphs.limit", 5, "6 shapes recorded, and the limit is 5"),
    ],
)
def test_a_payload_that_contradicts_itself_is_refused(path: str, value: Any, problem: str) -> None:
    """Each figure that does not agree with another is named with both sides."""
    info = payload()
    *parents, last = path.split(".")
    place: Any = info
    for name in parents:
        place = place[int(name)] if name.isdigit() else place[name]
    place[last] = value

    with pytest.raises(BootUnsound, match=problem):
        check_boot_info(info)
