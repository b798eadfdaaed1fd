"""Engines by version."""

import pytest

from nanoserve.capacity.engine_profile import (
    ENGINES,
    default_batch,
    find_profile,
    profile_of,
    version_numbers,
)
from nanoserve.errors import OptionError
from nanoserve.units import GIB


@pytest.mark.parametrize(
    ("text", "utilization", "graphs"),
    [
        ("vllm@0.6.4.post1", 0.9, "outside"),
        ("vllm@0.20.2", 0.9, "outside"),
        ("vllm@0.21", 0.92, "estimate in budget"),
        ("vllm@v0.23.1", 0.92, "estimate in budget"),
        ("vllm@0.26.1.dev3", 0.92, "estimate perhaps in budget"),
        ("vLLM", 0.92, "estimate perhaps in budget"),
        ("sglang", None, "outside"),
        ("trt-llm@1.2.1", 0.9, "outside"),
        ("llamacpp@4567", None, "none"),
        ("nanoserve", 0.9, "measured in budget"),
    ],
)
def test_profiles_by_version(text: str, utilization: float | None, graphs: str) -> None:
    """The default share and who pays for recorded steps changed over vLLM's versions."""
    profile = find_profile(text)

    assert (profile.utilization, profile.graphs) == (utilization, graphs)
    assert profile.source


def test_a_version_before_the_first_known() -> None:
    """The first rules are taken."""
    assert profile_of("vllm", (0, 0, 1)).since == (0, 1)


@pytest.mark.parametrize("text", ["ollama", "", "vllm@newest", "vllm@0.2x"])
def test_what_is_no_engine_is_refused(text: str) -> None:
    """The known engines are listed, or how a version is written."""
    with pytest.raises(OptionError, match="--engine"):
        find_profile(text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("v0.6.4.post1", (0, 6, 4)),
        ("0.29.1rc1", (0, 29, 1)),
        ("0.21+", (0, 21)),
        ("0.2x", None),
        ("x", None),
    ],
)
def test_versions(text: str, numbers: tuple[int, ...] | None) -> None:
    """What follows the numbers is left out; a version that could be any of ten is none."""
    assert version_numbers(text) == numbers


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


def test_every_engine_is_named_once() -> None:
    """The list is in the order of the profiles."""
    assert ENGINES == ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "nanoserve")
