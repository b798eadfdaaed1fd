"""`llm_output`: answers that grow."""

import pytest

from nanoserve.engine.interface import OutputDelta
from nanoserve.errors import EngineError
from nanoserve.launch.llm_output import CompletionOutput, RequestOutput
from nanoserve.sched.step import FinishReason, TokenLogprobs


def test_an_answer_is_the_sum_of_its_deltas() -> None:
    """Text, tokens and logprobs add up; the end is the last delta's."""
    entries = [TokenLogprobs(1, -0.5), TokenLogprobs(2, -1.5)]
    output = RequestOutput("p", [9], [CompletionOutput(0)])

    output.gain(
        0,
        OutputDelta(
            "r", "a", (1,), logprobs=(entries[0],), prompt_logprobs=(None,), num_cached_tokens=4
        ),
    )
    end = OutputDelta(
        "r", "b", (2,), FinishReason.STOP, "x", num_cached_tokens=4, logprobs=(entries[1],)
    )
    output.gain(0, end)

    expected = CompletionOutput(0, "ab", [1, 2], FinishReason.STOP, "x", entries)
    assert output == RequestOutput("p", [9], [expected], 4, [None])


def test_a_failed_answer_is_an_error() -> None:
    """The engine's words are the error's."""
    output = RequestOutput("p", [9], [CompletionOutput(0)])

    with pytest.raises(EngineError, match="out of memory"):
        output.gain(0, OutputDelta("r", "", (), FinishReason.ERROR, error="out of memory"))
