"""How models write calls."""

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
    """Names are literal, arguments follow the function's own schema."""
    schema = {"properties": {"city": {"type": "string"}}}
    functions = [Function(name="f", parameters=schema), Function(name="g")]

    spec = tool_call_grammar(HERMES, functions, is_parallel=True)

    assert spec.kind == "lark"
    assert spec.text.splitlines() == [
        'start: call ("\\n" call)*',
        "call: call_0 | call_1",
        r'call_0: "<tool_call>\n{\"name\": \"f\", \"arguments\": " args_0 "}\n</tool_call>"',
        'args_0: %json {"type": "object", "properties": {"city": {"type": "string"}}}',
        r'call_1: "<tool_call>\n{\"name\": \"g\", \"arguments\": " args_1 "}\n</tool_call>"',
        'args_1: %json {"type": "object"}',
    ]


def test_bare_calls_come_alone() -> None:
    """A model without tags calls one function at a time."""
    spec = tool_call_grammar(LLAMA, [Function(name="f")], is_parallel=True)

    assert spec.text.splitlines()[0] == "start: call"
    assert r'"{\"name\": \"f\", \"parameters\": " args_0 "}"' in spec.text


def test_parameters_are_objects() -> None:
    """A schema of anything else is refused with the function's name."""
    function = Function(name="f", parameters={"type": "string"})

    with pytest.raises(InvalidRequestError, match="'f'") as caught:
        tool_call_grammar(HERMES, [function], is_parallel=False)

    assert caught.value.param == "tools"
