"""Engines by version."""

import pytest

from nanoserve.capacity.engine_profile import (
    ENGINES,
    find_profile,
    profile_of,
    version_numbers,
)
from nanoserve.errors import OptionError


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


def test_every_engine_is_named_once() -> None:
    """The list is in the order of the profiles."""
    assert ENGINES == ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "nanoserve")
