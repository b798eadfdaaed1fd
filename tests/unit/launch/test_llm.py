"""`LLM`: prompts and sampling from Python, where nothing has checked their types."""

from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError
from nanoserve.launch.llm import LLM
from nanoserve.sched.sampling_params import SamplingParams
from tests.unit.launch.test_boot import folder  # noqa: F401 - a fixture


@pytest.fixture
def llm(folder: Any) -> LLM:  # noqa: F811
    return LLM(folder, device="cpu", num_blocks=16)


@pytest.mark.parametrize("prompts", [None, 5, b"ab", [None], [1.5], ["a", 5], [["a"]], [b"a"]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    """The message quotes the value, and the next call is answered."""
    with pytest.raises(InvalidRequestError, match="text or a list of token ids"):
        llm.generate(prompts)

    mixed: list[Any] = ["a", [98]]
    assert len(llm.generate(mixed)) == 2


@pytest.mark.parametrize("sampling", [5, {"temperature": 0}, [None]])
def test_what_is_no_sampling_is_refused(llm: LLM, sampling: Any) -> None:
    """The message names what is meant."""
    with pytest.raises(InvalidRequestError, match="it must be SamplingParams"):
        llm.generate(["a"], sampling)


def test_interrupted_call_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a step frees the blocks; the next answer is undisturbed."""
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    expected = llm.generate("a", greedy)[0].outputs[0].token_ids
    core = llm._booted.core

    def interrupt(plan: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(core._runner, "execute", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["b", "c"], greedy)

    assert core.snapshot().gauges.num_used_blocks == 0
    assert llm.generate("a", greedy)[0].outputs[0].token_ids == expected
