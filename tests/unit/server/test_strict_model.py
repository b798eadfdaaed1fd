"""Types of request fields, and how a wrong one is named."""

from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError
from nanoserve.server.chat_protocol import ChatCompletionRequest
from nanoserve.server.protocol import CompletionRequest
from nanoserve.server.strict_model import validate_fields

CALLED = {"name": "f", "arguments": "{}"}
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": "0.7"}, "temperature: Input should be a valid number"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"n": True}, "n: Input should be a valid integer"),
        ({"n": 1.0}, "n: Input should be a valid integer"),
        (
            {"stop": 5},
            "stop: Input should be a valid string; or stop: Input should be a valid list",
        ),
        ({"stop": ["a", 5]}, r"stop\.1"),
        ({"response_format": {"type": "xml"}}, "response_format: .*'xml'.* does not match"),
        ({"response_format": {}}, "response_format: "),
        ({"prompt": [1, "a"]}, "prompt: must be a string, or a list of strings"),
        ({"prompt": [True]}, "prompt: must be"),
        ({"prompt": [[1], "a"]}, "prompt: must be"),
        ({"prompt": {}}, "prompt: must be"),
        ({"prompt": ["a"] * 129}, "prompt: has 129 prompts; one call may have 128"),
        ({"logit_bias": dict.fromkeys(map(str, range(1025)), "x")}, "has 1025 entries"),
        ({"stream_options": dict.fromkeys(map(str, range(65)))}, "has 65 fields"),
        (dict.fromkeys(map(str, range(64))), "The request body has 65 fields; one object may"),
        ({"temprature": 1}, "Unknown field 'temprature'"),
        ({"stream_options": {"foo": 1}}, r"Unknown field 'stream_options\.foo'"),
    ],
)
def test_wrong_completion_fields_are_named(change: dict[str, Any], message: str) -> None:
    """The message holds the path and what is expected."""
    with pytest.raises(InvalidRequestError, match=message):
        validate_fields(CompletionRequest, {"prompt": "x"} | change)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "user"}, "messages.0: content must be"),
        ({"role": "user", "content": None}, "messages.0: content must be"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages.0.content.0.type"),
        ({"role": "assistant", "content": "x", "tool_calls": [1]}, "messages.0.tool_calls"),
        (
            {"role": "user", "tool_calls": [{"id": "c", "function": CALLED}]},
            "messages.0: tool_calls belong",
        ),
        ({"role": "user", "content": "x", "foo": 1}, "messages.0.foo"),
    ],
)
def test_wrong_messages_are_named_by_path(message: dict[str, Any], path: str) -> None:
    """A client finds the message and the part that are wrong."""
    with pytest.raises(InvalidRequestError) as caught:
        validate_fields(ChatCompletionRequest, {"messages": [message]})

    assert path in str(caught.value)


def test_first_wrong_item_is_the_only_one_named() -> None:
    """A list of wrong items is not checked to its end."""
    with pytest.raises(InvalidRequestError) as caught:
        validate_fields(ChatCompletionRequest, {"messages": [{}] * 1000})

    assert "messages.0.role" in str(caught.value)
    assert "messages.1" not in str(caught.value)


def test_int_is_a_number() -> None:
    """A whole number is accepted where a float is meant."""
    fields = validate_fields(CompletionRequest, {"prompt": "x", "temperature": 0})

    assert fields.temperature == 0.0


def test_assistant_turn_can_be_sent_back() -> None:
    """What a client has from an earlier answer, nulls included, is a valid message."""
    earlier: dict[str, Any] = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "annotations": [],
    }
    earlier |= {"audio": None, "function_call": None, "tool_calls": None}

    fields = validate_fields(ChatCompletionRequest, {"messages": [USER, earlier, USER]})

    assert fields.messages[1].content == "hi"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tools": [{"type": "function"}]}, r"tools\.0\.function"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            r"tools\.0\.function\.name",
        ),
        ({"tools": [{"type": "web", "function": {"name": "a"}}]}, r"tools\.0\.type"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"top_logprobs": True}, "top_logprobs"),
        ({"reasoning_effort": "high"}, "Unknown field 'reasoning_effort'"),
        ({"chat_template_kwargs": {"other": 1}}, r"Unknown field 'chat_template_kwargs\.other'"),
    ],
)
def test_wrong_chat_fields_are_named(change: dict[str, Any], message: str) -> None:
    """The message holds the path and what is expected."""
    with pytest.raises(InvalidRequestError, match=message):
        validate_fields(ChatCompletionRequest, {"messages": [USER]} | change)
