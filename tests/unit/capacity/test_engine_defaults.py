"""Slots and budgets by default, and what a plugin changes."""

import pytest

from nanoserve.capacity.engine_defaults import default_batch, on_ascend
from nanoserve.capacity.engine_profile import find_profile
from nanoserve.units import GIB


@pytest.mark.parametrize(
    ("text", "gib", "batch"),
    [
        ("vllm@0.6", 80, (256, 2048)),
        ("vllm@0.8.1", 24, (1024, 2048)),
        ("vllm@0.8.5", 24, (256, 2048)),
        ("vllm@0.11", 24, (256, 2048)),
        ("vllm@0.11", 80, (1024, 8192)),
        ("vllm@0.24", 180, (1024, 16384)),
        ("nanoserve", 80, (256, 2048)),
    ],
)
def test_default_batches(text: str, gib: int, batch: tuple[int, int]) -> None:
    """A larger card gets more slots and longer steps from vLLM."""
    assert default_batch(find_profile(text), gib * GIB) == batch


def test_an_a100_is_treated_as_small() -> None:
    """Its defaults are a small card's, whatever its memory."""
    profile = find_profile("vllm@0.11")

    assert default_batch(profile, 80 * GIB, "A100 80GB SXM") == (256, 2048)


def test_ascend_takes_no_estimate_off() -> None:
    """0.21 on CUDA does; on an NPU 0.03 GiB lay outside the allocator."""
    profile = on_ascend(find_profile("vllm@0.21"))

    assert (profile.graphs, profile.graph_layer_mib) == ("outside", None)
    assert profile.lone_gib[0] <= 0.03 <= profile.lone_gib[2]
    assert profile.utilization == 0.92
