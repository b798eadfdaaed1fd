"""Versions: those that are, those that will soon be, and those that nobody released."""

import pytest

from nanoserve import __version__
from nanoserve.capacity.engine_profile import find_profile
from nanoserve.capacity.engine_versions import version_note
from nanoserve.errors import OptionError
from tests.planner import planned


@pytest.mark.parametrize(
    "text",
    [
        "vllm@0.33.0",
        "vllm@v0.1.7",
        "vllm@0.34",
        "sglang@0.5.13.post1",
        "sglang@0.6.0",
        "tensorrt-llm@0.17",
        "trt@1.4.0rc1",
        "llama.cpp@b11434",
        "llama.cpp@4567",
        f"nanoserve@{__version__}",
    ],
)
def test_versions_that_are_planned(text: str) -> None:
    """Releases, candidates, and the next ones."""
    assert find_profile(text).source


@pytest.mark.parametrize(
    "text",
    [
        "vllm@99",
        "vllm@0.99",
        "vllm@1.0",
        "vllm@0.33.999",
        "vllm@0.0.0",
        "sglang@0.0.5",
        "sglang@0.50",
        "sglang@2",
        "tensorrt-llm@0.22",
        "tensorrt-llm@9.0",
        "llama.cpp@b99999",
        "llama.cpp@0.3.9",
        "llama.cpp@b0",
        "nanoserve@7.1",
        "nanoserve@0.99",
    ],
)
def test_versions_that_nobody_released(text: str) -> None:
    """The message says which are known."""
    with pytest.raises(OptionError, match=r"no such version of .* known are those .*\d"):
        find_profile(text)


@pytest.mark.parametrize("text", ["vllm@", "llama.cpp@", "vllm@ "])
def test_an_empty_version_is_none(text: str) -> None:
    """Who writes an @ means a version."""
    with pytest.raises(OptionError, match="write a version after the @"):
        find_profile(text)


def test_a_version_past_the_newest_says_so() -> None:
    """A plan of it is by the rules of the newest known, in a note."""
    ahead, known = planned(engine="vllm@0.35.1"), planned(engine="vllm@0.33")

    assert any("0.33.0 is the newest known" in note for note in ahead.notes)
    assert not any("newest known" in note for note in known.notes)
    assert ahead.pool == known.pool
    assert version_note("llama.cpp", (11_500,)) is not None
    assert version_note("llama.cpp", (11_000,)) is None
