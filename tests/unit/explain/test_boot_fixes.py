"""Changes that would have let a boot through."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.explain.boot_fixes import suggest_fixes
from nanoserve.explain.boot_log import read_boot_log
from nanoserve.explain.logged_boot import LoggedBoot, LoggedError
from nanoserve.explain.pool_fixes import profile_of_boot
from nanoserve.explain.suggested_fix import MAX_UTILIZATION
from nanoserve.units import GIB, MIB
from tests.boot_logs import log_of, records

TOO_LONG = LoggedBoot(
    engine="vllm",
    total_bytes=24 * GIB,
    utilization=0.9,
    max_model_len=40_960,
    error=LoggedError(
        "request larger than pool",
        "",
        "pool",
        need_bytes=round(5.62 * GIB),
        have_bytes=round(4.5 * GIB),
        fitting_len=32_768,
    ),
)


def changes(boot: LoggedBoot) -> list[str]:
    return [fix.change for fix in suggest_fixes(boot)]


def test_a_request_larger_than_the_pool() -> None:
    """A little more of the device, a shorter length or 8 bits would each do."""
    assert changes(TOO_LONG) == [
        "--gpu-memory-utilization 0.95",
        "--max-model-len 32768",
        "--kv-cache-dtype fp8",
    ]


def test_no_more_than_is_free_is_asked_for() -> None:
    """Beside others, the utilization cannot be raised that far."""
    crowded = replace(TOO_LONG, free_bytes=22 * GIB)

    assert changes(crowded)[0] == "--max-model-len 32768"


def test_eight_bits_are_no_help_twice() -> None:
    """A cache of 8 bits is not offered 8 bits; nor one of which half is too much."""
    assert TOO_LONG.error is not None
    halves = replace(TOO_LONG, error=replace(TOO_LONG.error, have_bytes=GIB))

    assert "--kv-cache-dtype fp8" not in changes(replace(TOO_LONG, kv_cache_dtype="fp8"))
    assert "--kv-cache-dtype fp8" not in changes(halves)


def test_a_length_by_the_ratio() -> None:
    """Where the engine names none, the length follows from the bytes, in whole blocks."""
    assert TOO_LONG.error is not None
    silent = replace(TOO_LONG, error=replace(TOO_LONG.error, fitting_len=None))

    assert "--max-model-len 32784" in changes(silent)


def test_a_pool_of_tokens() -> None:
    """Engines that count tokens are answered in tokens."""
    boot = LoggedBoot(
        engine="vllm",
        total_bytes=round(23.58 * GIB),
        utilization=0.9,
        pool_bytes=round(2.89 * GIB),
        pool_tokens=23_648,
        max_model_len=29_000,
    )

    assert changes(boot) == [
        "--gpu-memory-utilization 0.93",
        "--max-model-len 23648",
        "--kv-cache-dtype fp8",
    ]


def test_nothing_left_for_the_pool() -> None:
    """The utilization is raised until a small pool is there, as far as it goes."""
    boot = LoggedBoot(engine="vllm", total_bytes=8 * GIB, utilization=0.7, pool_bytes=-GIB)

    assert changes(boot) == ["--gpu-memory-utilization 0.95"]
    assert changes(replace(boot, pool_bytes=-4 * GIB)) == []


def test_recording_outside_the_budget() -> None:
    """A little less for the pool, or nothing recorded."""
    boot = LoggedBoot(
        engine="vllm",
        total_bytes=round(22.36 * GIB),
        utilization=0.98,
        pool_bytes=3 * GIB,
        error=LoggedError("out of memory", "", "capture", 136 * MIB, 121 * MIB),
    )

    assert changes(boot) == ["--gpu-memory-utilization 0.97", "--enforce-eager"]
    assert changes(replace(boot, engine="sglang")) == [
        "--mem-fraction-static 0.97",
        "--disable-cuda-graph",
    ]


def test_recording_that_failed_without_figures() -> None:
    """A driver's error names no sizes: room is made for the most that recorded boots took."""
    error = LoggedError("out of memory", "CUDA error: out of memory", "capture")
    boot = LoggedBoot(
        engine="vllm", version="0.9.0", total_bytes=24 * GIB, utilization=0.98, error=error
    )
    most = profile_of_boot(boot).graph_gib[2] * GIB

    lower, eager = suggest_fixes(boot)

    left = 0.02 * 24 * GIB + lower.freed_bytes
    assert most <= left <= most + 0.01 * 24 * GIB
    assert eager.change == "--enforce-eager"


def test_less_free_than_asked_for() -> None:
    """Others leave, or less is asked for."""
    boot = LoggedBoot(
        engine="vllm",
        total_bytes=round(79.25 * GIB),
        utilization=0.9,
        error=LoggedError(
            "free memory below utilization", "", "start", round(71.33 * GIB), round(67.24 * GIB)
        ),
    )
    others, less = suggest_fixes(boot)

    assert others.effect == "4.09 GiB must get free"
    assert less.change == "--gpu-memory-utilization 0.84"


def test_fewer_requests_than_states() -> None:
    """As many as have a state; a refusal cut short names no number."""
    error = LoggedError("too many requests for state", "", "pool", fitting_seqs=614)
    boot = LoggedBoot(engine="vllm", error=error)

    assert changes(boot) == ["--max-num-seqs 614"]
    assert changes(replace(boot, error=replace(error, fitting_seqs=None))) == []


def test_others_who_hold_the_card() -> None:
    """What must get free is no more than what lacked."""
    error = LoggedError("out of memory", "", "weights", 2 * GIB, GIB, others_bytes=15 * GIB)
    boot = LoggedBoot(engine="vllm", total_bytes=24 * GIB, error=error)

    (others,) = suggest_fixes(boot)
    assert others.effect == "1.00 GiB must get free; others hold 15.00 GiB"


def test_sglangs_share_is_of_what_was_free() -> None:
    """Its log names no total; what was free at the start stands for it."""
    boot = LoggedBoot(
        engine="sglang",
        free_bytes=20 * GIB,
        loaded_free_bytes=11 * GIB // 2,
        utilization=0.7,
        error=LoggedError("no room for pool", "", "pool"),
    )

    assert changes(boot) == ["--mem-fraction-static 0.78"]
    assert suggest_fixes(boot)[0].effect.startswith("pool 1.10 GiB")


def test_a_pool_that_was_not_allocated() -> None:
    """A little less of the device, as long as a pool is left."""
    boot = LoggedBoot(
        engine="vllm",
        total_bytes=24 * GIB,
        utilization=0.9,
        pool_bytes=4 * GIB,
        error=LoggedError("out of memory", "", "pool", 2 * GIB, GIB),
    )

    assert changes(boot) == ["--gpu-memory-utilization 0.85"]
    assert changes(replace(boot, pool_bytes=GIB)) == []
    assert changes(replace(boot, utilization=None)) == []


def test_without_figures_there_is_less_to_offer() -> None:
    """A refusal cut short names no sizes."""
    cut = LoggedError("free memory below utilization", "", "start")

    assert changes(LoggedBoot(error=cut)) == []
    assert changes(LoggedBoot(error=cut, total_bytes=GIB, free_bytes=MIB, utilization=0.9)) == []


@pytest.mark.parametrize("boot", [LoggedBoot(), LoggedBoot(is_ready=True)])
def test_without_a_failure_nothing_is_suggested(boot: LoggedBoot) -> None:
    """Neither an empty log nor a healthy one."""
    assert suggest_fixes(boot) == ()


def test_an_engine_without_the_flag_gets_another() -> None:
    """llama.cpp holds what the context asks for: only its length can change."""
    assert changes(replace(TOO_LONG, engine="llama.cpp")) == [
        "--ctx-size 32768",
        "--cache-type-k q8_0 --cache-type-v q8_0",
    ]


@given(
    st.integers(1, 200 * GIB),
    st.floats(0.01, 1),
    st.integers(0, 100 * GIB),
    st.integers(-20 * GIB, 100 * GIB),
)
def test_a_raised_utilization_is_enough(
    total: int, utilization: float, need: int, have: int
) -> None:
    """What is offered covers what is missing and stays under the limit."""
    error = LoggedError("request larger than pool", "", "pool", need, have)
    boot = LoggedBoot(total_bytes=total, utilization=utilization, error=error)

    for fix in suggest_fixes(boot):
        if "utilization" in fix.change:
            assert fix.freed_bytes >= need - have
            assert float(fix.change.split()[-1]) <= MAX_UTILIZATION + 0.005


def test_logs_of_recorded_failures() -> None:
    """Whatever was recorded is answered without a failure of its own."""
    for record in records():
        suggest_fixes(read_boot_log(log_of(record)))


def test_what_others_hold_is_named_where_the_engine_counts_it() -> None:
    """Release 0.6.4 of vLLM takes all that is in use outside PyTorch for its own."""
    counted = LoggedBoot(
        engine="vllm",
        total_bytes=80 * GIB,
        utilization=0.9,
        free_bytes=9 * GIB,
        weight_bytes=GIB,
        non_torch_bytes=71 * GIB,
        pool_bytes=-2 * GIB,
        error=LoggedError("no room for pool", "", "pool"),
    )

    assert changes(counted) == ["stop other processes on the GPU"]
    assert changes(replace(counted, non_torch_bytes=GIB // 2, free_bytes=79 * GIB)) == [
        "--gpu-memory-utilization 0.94"
    ]
