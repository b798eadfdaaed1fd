"""`llm_input`: the shapes in which Python callers give prompts, messages and sampling."""

from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError
from nanoserve.launch.llm_input import as_conversations, as_prompts, as_samplings
from nanoserve.sched.sampling_params import SamplingParams

HELLO = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("ab", ["ab"]),
        ([1, 2], [[1, 2]]),
        (["a", [1, 2]], ["a", [1, 2]]),
        ((["a"]), ["a"]),
        ([], []),
    ],
)
def test_one_prompt_is_a_batch_of_one(prompts: Any, expected: list[Any]) -> None:
    """A text and a list of ids stand for themselves."""
    assert as_prompts(prompts) == expected


@pytest.mark.parametrize(
    ("messages", "expected"),
    [([HELLO], [[HELLO]]), ([[HELLO], [HELLO] * 2], [[HELLO], [HELLO] * 2])],
)
def test_one_conversation_is_a_batch_of_one(messages: Any, expected: list[Any]) -> None:
    """A list of messages stands for itself."""
    assert as_conversations(messages) == expected


@pytest.mark.parametrize("messages", ["hi", 5, None, HELLO, ["hi"], [[]], [HELLO, [HELLO]], [[5]]])
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    """The message quotes what was given."""
    with pytest.raises(InvalidRequestError, match="A conversation is a list of messages"):
        as_conversations(messages)


def test_sampling_is_for_all_or_one_for_each() -> None:
    """None takes the defaults; a list must be as long as the prompts."""
    own = SamplingParams(max_tokens=3)

    assert as_samplings(None, 2) == [SamplingParams()] * 2
    assert as_samplings(own, 2) == [own] * 2
    assert as_samplings([own, SamplingParams()], 2) == [own, SamplingParams()]
    with pytest.raises(InvalidRequestError, match="2 prompts and 1 sampling"):
        as_samplings([own], 2)
