"""Advice is written as flags. That it fits: tests/property/test_advice_fits.py."""

import pytest

from nanoserve.errors import CaptureTooSmall
from nanoserve.options import EngineOptions
from nanoserve.plan.boot_advice import Changes, as_flags, capture_advice


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"max_model_len": 160}, "--max-model-len 160"),
        ({"kv_cache_bytes": 3 * 2**20}, "--kv-cache-bytes 3MiB"),
        ({"kv_cache_bytes": 1000}, "--kv-cache-bytes 1000"),
        ({"cuda_graphs": False}, "--no-cuda-graphs"),
        ({"warm_width": 128, "warm": True}, "--warm-width 128 --warm"),
    ],
)
def test_changes_are_written_as_they_are_typed(changes: Changes, flags: str) -> None:
    """Bytes in MiB where they are whole, switches without a value."""
    assert as_flags(changes) == flags


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (EngineOptions(), "--decode-mode eager"),
        (EngineOptions(cuda_graphs=True), "--no-cuda-graphs"),
        (
            EngineOptions(cuda_graphs=True, decode_mode="captured"),
            "--no-cuda-graphs --decode-mode eager",
        ),
    ],
)
def test_capture_is_given_up_by_the_flag_that_asked_for_it(
    options: EngineOptions, flags: str
) -> None:
    """The advice does not contradict a flag that stays on the command line."""
    advice = capture_advice(CaptureTooSmall("limit", 1, 4), options, lambda changed: None)

    assert advice == ("--capture-limit 4", "--warm-rows 7", flags)
