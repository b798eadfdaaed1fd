"""How models write calls."""

import json
from typing import Any

import pytest

from nanoserve.errors import InvalidRequestError
from nanoserve.server.chat_protocol import Function
from nanoserve.server.tool_style import (
    HERMES,
    LLAMA,
    ToolStyle,
    detect_tool_style,
    tool_call_grammar,
)
from nanoserve.text.grammar_spec import JSON_STYLE

QWEN = (
    r"""{%- if tools %}# Tools\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args>}"""
)
LLAMA_3 = """{% if tools %}{"name": function name, "parameters": dictionary of argument name}"""


@pytest.mark.parametrize(
    ("source", "style"),
    [
        (QWEN, HERMES),
        (LLAMA_3, LLAMA),
        (LLAMA_3.replace('"', '\\"'), LLAMA),
        ("{% for m in messages %}<tool_call>{% endfor %}", None),
        ("{{ tools }}", None),
        ("{{ tools }}<tool_call><function=name></tool_call>", None),
    ],
)
def test_style_shows_in_the_template(source: str, style: ToolStyle | None) -> None:
    """A template that has no tools, or writes calls as XML, has no style of ours."""
    assert detect_tool_style(source) == style


def test_grammar_has_a_rule_for_each_function() -> None:
    """Names are literal; arguments follow the function's own schema, in one style of JSON."""
    schema = {"properties": {"city": {"type": "string"}}, "x-guidance": {"lenient": True}}
    functions = [Function(name="f", parameters=schema), Function(name="g")]

    spec = tool_call_grammar(HERMES, functions, is_parallel=True)

    rules = dict(line.split(": ", 1) for line in spec.text.splitlines())
    assert spec.kind == "lark"
    assert rules["start"] == "calls"
    assert rules["calls"] == 'call ("\\n" call)*'
    assert rules["call"] == "call_0 | call_1"
    assert rules["call_1"] == (
        r'"<tool_call>\n{\"name\": \"g\", \"arguments\": " args_1 "}\n</tool_call>"'
    )
    assert json.loads(rules["args_0"].removeprefix("%json ")) == {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "additionalProperties": False,
        "x-guidance": JSON_STYLE,
    }
    assert json.loads(rules["args_1"].removeprefix("%json ")) == {
        "type": "object",
        "additionalProperties": False,
        "x-guidance": JSON_STYLE,
    }


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": {"type": "integer"}},
        {"patternProperties": {"^x": {}}},
        {"anyOf": [{"properties": {"b": {}}}]},
        {"$ref": "#/$defs/more", "$defs": {"more": {"properties": {"b": {}}}}},
    ],
)
def test_schema_that_takes_more_arguments_is_left_as_it_is(more: dict[str, Any]) -> None:
    """Arguments may be open, or listed elsewhere; and without a list, any will do."""
    listed = {"type": "object", "properties": {"a": {}}, **more}
    functions = [Function(name="f", parameters=listed), Function(name="g", parameters={})]

    spec = tool_call_grammar(HERMES, functions, is_parallel=True)

    rules = dict(line.split(": ", 1) for line in spec.text.splitlines())
    style = {"x-guidance": JSON_STYLE}
    assert json.loads(rules["args_0"].removeprefix("%json ")) == listed | style
    assert json.loads(rules["args_1"].removeprefix("%json ")) == {"type": "object"} | style


def test_bare_calls_come_alone() -> None:
    """A model without tags calls one function at a time."""
    spec = tool_call_grammar(LLAMA, [Function(name="f")], is_parallel=True)

    assert spec.text.startswith("start: calls\ncalls: call\n")
    assert r'"{\"name\": \"f\", \"parameters\": " args_0 "}"' in spec.text


def test_parameters_are_objects() -> None:
    """A schema of anything else is refused with the function's name."""
    function = Function(name="f", parameters={"type": "string"})

    with pytest.raises(InvalidRequestError, match="'f'") as caught:
        tool_call_grammar(HERMES, [function], is_parallel=False)

    assert caught.value.param == "tools"


def test_parameters_have_a_bounded_number_of_optional_properties() -> None:
    """A function with more is refused by name, not in the middle of its call."""
    properties: dict[str, Any] = {f"p{index}": {"type": "null"} for index in range(249)}
    function = Function(name="f", parameters={"properties": properties})

    with pytest.raises(InvalidRequestError, match="function 'f' in tools: an object has 249"):
        tool_call_grammar(HERMES, [function], is_parallel=True)
