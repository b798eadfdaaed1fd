"""Tools, grammars and reasoning over the wire; streams equal to unary answers."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from nanoserve.text.chat_template import ChatTemplate
from tests.builders import END_ID, TOOL_TEMPLATE, make_engine, make_limits, scripted_engine
from tests.fakes import FakeCompiler
from tests.socket.conftest import Served

Serve = Callable[..., Served]
PATH = "/v1/chat/completions"
TEMPLATE = ChatTemplate(TOOL_TEMPLATE, None, None)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "clock"}},
]
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Plzeň"}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "weather"}}


def forced(serve: Serve, text: str) -> tuple[Served, FakeCompiler]:
    """Serve an engine whose grammars make every answer `text`."""
    compiler = FakeCompiler(text, END_ID)
    engine = make_engine(limits=make_limits(eos_token_ids=frozenset({END_ID})))
    return serve(engine, chat_template=TEMPLATE, grammar_compiler=compiler), compiler


def joined(chunks: list[Any]) -> dict[str, Any]:
    """Return the message and the reason that a stream's chunks add up to."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for chunk in chunks:
        choice = chunk["choices"][0]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                message["calls"].append([call["function"]["name"], ""])
            message["calls"][call["index"]][1] += call["function"]["arguments"]
        message["reason"] = choice["finish_reason"]
    return message


def unary(choice: dict[str, Any]) -> dict[str, Any]:
    """Return a whole answer in the same form."""
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [[call["name"], call["arguments"]] for call in calls],
        "reason": choice["finish_reason"],
    }


@pytest.mark.parametrize(
    "text",
    [
        "No tool needed.",
        CALL,
        f"Two: {CALL}\n{CALL}",
        "<tool_call>broken</tool_call>",
        "<think>\nhm</think>\n\nYes.",
        f"<think>{CALL}</think>{CALL}",
        "a <tool and <thin",
    ],
)
@pytest.mark.parametrize("separate_reasoning", [True, False])
def test_streamed_message_is_the_unary_message(
    serve_in_thread: Serve, text: str, separate_reasoning: bool
) -> None:
    """Content, reasoning, calls and reason, whatever the model writes."""
    served = serve_in_thread(scripted_engine(text), chat_template=TEMPLATE)
    call = ASK | {"tools": TOOLS, "separate_reasoning": separate_reasoning}

    whole = unary(served.post(PATH, **call)["choices"][0])
    chunks = served.stream(PATH, **call)

    assert chunks.pop() == "[DONE]"
    assert joined(chunks) == whole
    assert whole["reason"] == ("tool_calls" if whole["calls"] else "stop")
    assert all(json.loads(arguments) for _, arguments in whole["calls"])
    assert ("hm" in whole["reasoning"]) == (separate_reasoning and "hm" in text)


def test_model_calls_a_tool_of_its_own(serve_in_thread: Serve) -> None:
    """The message has null content, a call with an id, and its own reason."""
    served = serve_in_thread(scripted_engine(CALL), chat_template=TEMPLATE, new_id=lambda: "i" * 32)

    choice = served.post(PATH, tools=TOOLS, **ASK)["choices"][0]

    function = {"name": "weather", "arguments": '{"city": "Plzeň"}'}
    assert choice == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [{"id": "call_" + "i" * 24, "type": "function", "function": function}],
        },
        "logprobs": None,
        "finish_reason": "tool_calls",
    }


def test_tools_ruled_out_are_not_looked_for(serve_in_thread: Serve) -> None:
    """With tool_choice none the text is the answer."""
    served = serve_in_thread(scripted_engine(CALL), chat_template=TEMPLATE)

    choice = served.post(PATH, tools=TOOLS, tool_choice="none", **ASK)["choices"][0]

    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


@pytest.mark.parametrize("tool_choice", ["required", NAMED])
def test_forced_call_follows_a_grammar(serve_in_thread: Serve, tool_choice: Any) -> None:
    """The grammar holds the functions that may be called; stream and unary agree."""
    served, compiler = forced(serve_in_thread, CALL)
    call = ASK | {"tools": TOOLS, "tool_choice": tool_choice}

    whole = unary(served.post(PATH, **call)["choices"][0])
    chunks = served.stream(PATH, **call)[:-1]

    assert whole["calls"] == [["weather", '{"city": "Plzeň"}']]
    assert joined(chunks) == whole
    assert whole["reason"] == "tool_calls"
    assert len(chunks) > 12, "arguments are streamed as they come"
    assert ("clock" in compiler.specs[0].text) == (tool_choice == "required")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
        {"guided_regex": "x"},
        {"structured_outputs": {"choice": ["x"]}},
    ],
)
def test_answer_follows_the_grammar(serve_in_thread: Serve, fields: dict[str, Any]) -> None:
    """On both endpoints, each of n choices with a matcher of its own."""
    served, compiler = forced(serve_in_thread, '{"a": 1}')

    chat = served.post(PATH, n=2, **ASK, **fields)
    completion = served.post("/v1/completions", prompt="x", **fields)

    contents = [choice["message"]["content"] for choice in chat["choices"]]
    assert contents == ['{"a": 1}'] * 2
    assert completion["choices"][0]["text"] == '{"a": 1}'
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert len(compiler.specs) == 2


def test_broken_grammar_is_a_400(serve_in_thread: Serve) -> None:
    """Said before anything is generated, stream or not, with the compiler's reason."""
    served, _ = forced(serve_in_thread, "")
    for is_stream in (False, True):
        response = served.http.post(
            PATH, json=ASK | {"guided_grammar": "broken"} | {"stream": is_stream}
        )

        assert response.status_code == 400
        assert response.json()["error"]["param"] == "guided_grammar"
        assert "It is no grammar" in response.json()["error"]["message"]
    assert served.engine.num_in_flight == 0


def test_openai_client_streams_tool_calls(serve_in_thread: Serve) -> None:
    """The official client puts the pieces together, and takes the result back."""
    served = serve_in_thread(scripted_engine(CALL), chat_template=TEMPLATE)
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        with client.chat.completions.stream(model="fake", tools=TOOLS, **ASK) as stream:
            message = stream.get_final_completion().choices[0].message
        assert message.tool_calls is not None
        result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3 °C"}
        earlier: Any = message
        answer = client.chat.completions.create(
            model="fake", tools=TOOLS, messages=[*ASK["messages"], earlier, result]
        )

    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Plzeň"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_thinking_that_the_prompt_opened_is_split(serve_in_thread: Serve) -> None:
    """A template that ends inside the tag leaves the model to close it."""
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n", None, None
    )
    served = serve_in_thread(scripted_engine("hm</think>Yes."), chat_template=template)

    message = served.post(PATH, separate_reasoning=True, **ASK)["choices"][0]["message"]

    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes.")
