"""What tools and tool_choice ask for."""

from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError
from nanoserve.server.chat_protocol import MAX_TOOLS, ChatCompletionRequest
from nanoserve.server.chat_tools import chat_grammar
from nanoserve.text.chat_template import ChatTemplate
from tests.builders import CHAT_TEMPLATE, TOOL_TEMPLATE

TOOLS = [{"type": "function", "function": {"name": name}} for name in "fg"]
NAMED = {"type": "function", "function": {"name": "g"}}
TEMPLATE = ChatTemplate(TOOL_TEMPLATE, None, None)


def chat(**values: Any) -> ChatCompletionRequest:
    message = {"role": "user", "content": "x"}
    return ChatCompletionRequest.model_validate({"messages": [message]} | values)


@pytest.mark.parametrize("values", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
def test_no_tools_no_calls(values: dict[str, Any]) -> None:
    """Nothing is looked for, whatever the template can."""
    assert chat_grammar(chat(**values), TEMPLATE) == (None, None)
    assert chat_grammar(chat(**values), None) == (None, None)


@pytest.mark.parametrize("choice", [None, "auto"])
def test_auto_leaves_the_answer_free(choice: str | None) -> None:
    """Calls of every function count, and there is no grammar."""
    rules, grammar = chat_grammar(chat(tools=TOOLS, tool_choice=choice), TEMPLATE)

    assert rules is not None
    assert (rules.names, rules.is_forced, rules.max_calls) == (("f", "g"), False, MAX_TOOLS)
    assert grammar is None


def test_required_is_a_grammar_of_all_functions() -> None:
    """Calls may repeat unless they are not to be parallel."""
    rules, grammar = chat_grammar(chat(tools=TOOLS, tool_choice="required"), TEMPLATE)
    single = {"tool_choice": "required", "parallel_tool_calls": False}
    _, single_grammar = chat_grammar(chat(tools=TOOLS, **single), TEMPLATE)

    assert rules is not None
    assert rules.is_forced
    assert grammar is not None
    assert single_grammar is not None
    assert grammar[0] == "tool_choice"
    assert "call: call_0 | call_1" in grammar[1].text
    assert (")*" in grammar[1].text, ")*" in single_grammar[1].text) == (True, False)


def test_named_function_is_the_only_one() -> None:
    """Once, and no other."""
    rules, grammar = chat_grammar(chat(tools=TOOLS, tool_choice=NAMED), TEMPLATE)

    assert rules is not None
    assert (rules.names, rules.max_calls) == (("g",), 1)
    assert grammar is not None
    assert "call: call_0\n" in grammar[1].text


@pytest.mark.parametrize(
    ("field", "schema"),
    [
        ({"response_format": {"type": "json_object"}}, '{"type": "object", '),
        ({"guided_json": {"type": "array"}}, '{"type": "array", '),
    ],
)
def test_json_answer_may_be_a_call_instead(field: dict[str, Any], schema: str) -> None:
    """With tools in reach the answer follows the schema or calls one; a forced call is one."""
    rules, grammar = chat_grammar(chat(tools=TOOLS, **field), TEMPLATE)
    _, forced = chat_grammar(chat(tools=TOOLS, tool_choice="required", **field), TEMPLATE)

    assert rules is not None
    assert not rules.is_forced
    assert grammar is not None
    assert grammar[0] == next(iter(field))
    assert grammar[1].text.startswith(f"start: answer | calls\nanswer: %json {schema}")
    assert forced is not None
    assert forced[1].text.startswith("start: calls\ncalls: call")


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED, "tools": TOOLS[:1]}, "tool_choice"),
        ({"tools": TOOLS[:1] * 2}, "tools"),
        ({"tools": TOOLS, "guided_regex": "a"}, "guided_regex"),
        ({"tools": TOOLS, "guided_json": "["}, "guided_json"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], param: str) -> None:
    """The field at fault is named."""
    with pytest.raises(InvalidRequestError) as caught:
        chat_grammar(chat(**values), TEMPLATE)

    assert caught.value.param == param


def test_model_without_tools_says_so() -> None:
    """A template without tools would drop them silently."""
    with pytest.raises(InvalidRequestError, match="not supported with this model") as caught:
        chat_grammar(chat(tools=TOOLS), ChatTemplate(CHAT_TEMPLATE, None, None))

    assert caught.value.param == "tools"
