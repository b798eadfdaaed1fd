"""litellm's client: chat and completion, whole and streamed, tools and errors."""

import json
from typing import Any

import litellm
import pytest

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
        },
    },
}
USER = {"role": "user", "content": "Name a city."}


@pytest.fixture
def base(url: str, model_name: str) -> dict[str, Any]:
    return {
        "api_base": f"{url}/v1",
        "api_key": "none",
        "max_tokens": 16,
        "temperature": 0.0,
        "num_retries": 0,
    }


def test_chat(base: dict[str, Any], model_name: str) -> None:
    """The stream is the whole answer."""
    call = base | {"model": f"openai/{model_name}", "messages": [USER]}

    whole = litellm.completion(**call)
    chunks = list(litellm.completion(**call, stream=True))

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens <= 16


def test_completion(base: dict[str, Any], model_name: str) -> None:
    """The stream is the whole answer."""
    call = base | {"model": f"text-completion-openai/{model_name}", "prompt": "The capital of"}

    whole = litellm.text_completion(**call)
    chunks = list(litellm.text_completion(**call, stream=True))

    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == whole.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_forced_tool(base: dict[str, Any], model_name: str, stream: bool) -> None:
    """A forced call has its name and arguments that are JSON."""
    call = base | {"model": f"openai/{model_name}", "messages": [USER], "tools": [TOOL]}
    call |= {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 80}

    answer = litellm.completion(**call, stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer), messages=[USER])

    function = answer.choices[0].message.tool_calls[0].function
    assert function.name == "weather"
    assert json.loads(function.arguments)["city"]


def test_context_error_is_its_own(base: dict[str, Any], model_name: str) -> None:
    """A call that is too long raises litellm's error for that."""
    call = base | {"model": f"openai/{model_name}", "messages": [USER], "max_tokens": 10**6}

    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**call)
