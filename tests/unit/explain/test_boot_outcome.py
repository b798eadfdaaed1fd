"""What became of a boot, by its error or by its figures."""

from dataclasses import replace
from typing import Any

import pytest

from nanoserve.explain.boot_outcome import name_outcome
from nanoserve.explain.logged_boot import ErrorKind, LoggedBoot, LoggedError, Stage
from nanoserve.units import GIB

VLLM = LoggedBoot(engine="vllm", total_bytes=24 * GIB, utilization=0.9)


def failed(kind: ErrorKind, stage: Stage | None = None) -> LoggedBoot:
    return replace(VLLM, error=LoggedError(kind, "as printed", stage, 2 * GIB, GIB))


@pytest.mark.parametrize(
    ("stage", "kind", "line"),
    [
        ("start", "weights do not fit", "weights"),
        ("weights", "weights do not fit", "weights"),
        ("profile", "step does not fit", "activations"),
        ("pool", "pool does not fit", "kv pool"),
        ("capture", "capture out of headroom", "capture"),
        ("serving", "out of memory while serving", "activations"),
    ],
)
def test_memory_that_ran_out(stage: Stage, kind: str, line: str) -> None:
    """What was being done names the outcome and the line of the budget."""
    outcome = name_outcome(failed("out of memory", stage))

    assert (outcome.kind, outcome.broken_line) == (kind, line)
    assert "2.00 GiB was needed and 1.00 GiB was there." in outcome.reason


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("request larger than pool", "kv pool"),
        ("no room for pool", "kv pool"),
        ("free memory below utilization", "other processes"),
        ("memory changed while measuring", "other processes"),
        ("too many requests for state", "kv pool"),
        ("unsupported", None),
        ("option", None),
    ],
)
def test_refusals_keep_their_name(kind: ErrorKind, line: str | None) -> None:
    """A refusal says itself what it is."""
    outcome = name_outcome(failed(kind))

    assert (outcome.kind, outcome.broken_line) == (kind, line)


def test_tokens_are_named_where_there_are_no_bytes() -> None:
    """Engines that compare tokens are answered in tokens."""
    error = LoggedError("request larger than pool", "", need_tokens=29_000, have_tokens=23_648)

    assert "29,000 tokens were needed and 23,648" in name_outcome(replace(VLLM, error=error)).reason


def test_an_unclear_error_is_the_weights_where_they_exceed_their_room() -> None:
    """Otherwise nobody can say, and it is said so."""
    unclear = failed("unclear")

    assert name_outcome(unclear).kind == "unknown"
    assert name_outcome(replace(unclear, weight_bytes=23 * GIB)).kind == "weights do not fit"


def test_a_failed_allocation_of_nobody_at_no_stage_is_of_memory() -> None:
    """An error pasted alone does not say what was being done, but what ran out."""
    boot = failed("out of memory", None)

    assert name_outcome(boot).kind == "out of memory"
    assert name_outcome(boot).is_for_memory


@pytest.mark.parametrize(
    ("figures", "kind"),
    [
        ({"is_ready": True}, "ok"),
        ({"pool_bytes": GIB}, "ok"),
        ({"graph_bytes": GIB}, "ok"),
        ({"pool_bytes": -GIB}, "no room for pool"),
        ({"num_blocks": 0}, "no room for pool"),
        ({"weight_bytes": 15 * GIB, "activation_bytes": 8 * GIB}, "no room for pool"),
        ({"max_concurrency": 0.82, "pool_bytes": GIB}, "request larger than pool"),
        ({"pool_tokens": 1000, "max_model_len": 2000}, "request larger than pool"),
        ({"free_bytes": 10 * GIB}, "free memory below utilization"),
        ({"weight_bytes": 5 * GIB}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_without_an_error_the_figures_speak(figures: dict[str, Any], kind: str) -> None:
    """A recorded boot, or a log that is cut, is judged by what it has."""
    boot = replace(VLLM, **figures)

    assert name_outcome(boot).kind == kind


def test_a_pool_is_compared_with_a_request_where_the_shape_is_known() -> None:
    """With bytes of one longest request, a pool's bytes are enough."""
    boot = replace(VLLM, pool_bytes=GIB)

    assert name_outcome(boot, request_bytes=GIB).kind == "ok"
    assert name_outcome(boot, request_bytes=GIB + 1).kind == "request larger than pool"


def test_some_engines_serve_less_than_asked() -> None:
    """SGLang, TensorRT-LLM and llama.cpp start with a pool under one longest request."""
    boot = LoggedBoot(engine="sglang", pool_tokens=1000, max_model_len=2000)

    assert name_outcome(boot).kind == "ok"


def test_others_in_the_way_are_named_where_their_memory_would_do() -> None:
    """24 GiB, 1 of them free, 15 held by others: 2 GiB would have been there."""
    error = LoggedError("out of memory", "", "weights", 2 * GIB, GIB, others_bytes=15 * GIB)
    outcome = name_outcome(replace(VLLM, error=error))

    assert (outcome.kind, outcome.broken_line) == ("others hold the memory", "other processes")
    assert "Other processes hold 15.00 GiB" in outcome.reason
    few = replace(VLLM, error=replace(error, others_bytes=GIB))
    assert name_outcome(few).kind == "weights do not fit"


@pytest.mark.parametrize(("is_in_budget", "words"), [(True, "too low"), (None, "outside")])
def test_where_recorded_steps_are_paid_from(is_in_budget: bool | None, words: str) -> None:
    """Older vLLM leaves them outside the budget, newer ones take an estimate off it."""
    boot = replace(failed("out of memory", "capture"), is_graph_estimate_in_budget=is_in_budget)

    assert words in name_outcome(boot).reason


@pytest.mark.parametrize(
    ("kind", "is_for_memory"),
    [("host memory", True), ("driver", False), ("port in use", False), ("other error", False)],
)
def test_what_is_not_the_cards_memory_is_said(kind: ErrorKind, is_for_memory: bool) -> None:
    """No line of the card's budget broke."""
    outcome = name_outcome(failed(kind))

    assert (outcome.broken_line, outcome.is_for_memory) == (None, is_for_memory)
    assert not outcome.is_healthy


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (82, 90, "82.00 GiB was free before it and 90.00 GiB after."),
        (30, 30, "30.00 GiB was free before and after"),
    ],
)
def test_memory_that_changed_is_told_as_what_was_free(before: int, after: int, words: str) -> None:
    """Neither figure was needed by anybody."""
    error = LoggedError(
        "memory changed while measuring", "", need_bytes=after * GIB, have_bytes=before * GIB
    )
    reason = name_outcome(replace(VLLM, error=error)).reason

    assert words in reason
    assert "needed" not in reason


def test_a_log_that_ends_early_went_through_nothing() -> None:
    """A pool is not yet a server; the kind stays, the sentence says how far it came."""
    early = name_outcome(replace(VLLM, pool_bytes=GIB))
    ready = name_outcome(replace(VLLM, pool_bytes=GIB, is_ready=True))

    assert (early.kind, ready.kind) == ("ok", "ok")
    assert "went through" not in early.reason
    assert ready.reason.startswith("The boot went through.")


def test_compute_buffers_come_after_weights_and_cache() -> None:
    """llama.cpp profiles no step before its cache."""
    error = LoggedError("out of memory", "", "profile")
    reason = name_outcome(LoggedBoot(engine="llama.cpp", error=error)).reason

    assert reason == "Memory ran out for the compute buffers, beside weights and cache."
