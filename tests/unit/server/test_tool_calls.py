"""Tool calls in the text of an answer."""

import json
from typing import Any

import pytest

from nanoserve.server.message_parts import CallArguments, CallStart, ContentPart, MessagePart
from nanoserve.server.tool_calls import ToolCallParser, ToolCallRules
from nanoserve.server.tool_style import HERMES, LLAMA, ToolStyle

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>'
FORCED = '<tool_call>\n{"name": "f", "arguments": {"a": "}\\"", "b": [{}]}}\n</tool_call>'
SIZES = [1, 2, 3, 11, 1000]


def rules(style: ToolStyle = HERMES, **changes: Any) -> ToolCallRules:
    fields: dict[str, Any] = {"names": ("f", "g"), "is_forced": False, "max_calls": 8}
    return ToolCallRules(style, **(fields | changes))


def parse(
    text: str, size: int, of: ToolCallRules
) -> tuple[str, list[tuple[str, str]], list[MessagePart]]:
    """Return content, calls and parts of a text that comes in pieces of `size`."""
    parser = ToolCallParser(of, lambda: "id")
    parts: list[MessagePart] = []
    for start in range(0, len(text), size):
        parts += parser.push(text[start : start + size], is_last=False)
    parts += parser.push("", is_last=True)
    content = "".join(part.text for part in parts if isinstance(part, ContentPart))
    starts = [part for part in parts if isinstance(part, CallStart)]
    arguments = [part for part in parts if isinstance(part, CallArguments)]
    assert [start.index for start in starts] == list(range(parser.num_calls))
    calls = [
        (start.name, "".join(a.text for a in arguments if a.index == start.index))
        for start in starts
    ]
    return content, calls, parts


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("text", "content", "num_calls"),
    [
        (CALL, "", 1),
        (f"\n{CALL}\n", "", 1),
        (f"Let me see.\n{CALL}", "Let me see.\n", 1),
        (f"{CALL}\n{CALL}", "", 2),
        (f"{CALL}\nDone.", "Done.", 1),
        ('<tool_call>{"name":"g","arguments":{}}', "", 1),
        ("a < b <tool", "a < b <tool", 0),
        (" \n", " \n", 0),
        (f"{CALL}<tool", "<tool", 1),
    ],
)
def test_calls_are_found_in_text(text: str, content: str, num_calls: int, size: int) -> None:
    """Whatever the pieces; blanks around calls belong to nobody."""
    found_content, calls, _ = parse(text, size, rules())

    assert (found_content, len(calls)) == (content, num_calls)
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nnothing\n</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "text"}</tool_call>',
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1',
        "<tool_call>",
    ],
)
def test_what_is_no_call_stays_text(text: str, size: int) -> None:
    """Nothing of it is lost, and no arguments are made up."""
    assert parse(text, size, rules())[:2] == (text, [])


@pytest.mark.parametrize("size", SIZES)
def test_bare_calls_stand_at_the_start(size: int) -> None:
    """Llama's calls have no tags: an object in the place of an answer, or several."""
    call = '{"name": "f", "parameters": {"a": 1}}'

    assert parse(f"{call}; {call}", size, rules(LLAMA))[:2] == ("", [("f", '{"a": 1}')] * 2)
    assert parse(f"See: {call}", size, rules(LLAMA))[:2] == (f"See: {call}", [])
    assert parse('{"a": 1}', size, rules(LLAMA))[:2] == ('{"a": 1}', [])


@pytest.mark.parametrize("size", SIZES)
def test_calls_beyond_the_bound_are_text(size: int) -> None:
    """Without parallel calls the first one counts."""
    content, calls, _ = parse(f"{CALL}\n{CALL}", size, rules(max_calls=1))

    assert (content, len(calls)) == (CALL, 1)


@pytest.mark.parametrize("size", SIZES)
def test_forced_call_is_passed_on_as_it_grows(size: int) -> None:
    """The name comes as soon as it is known, then the arguments character by character."""
    content, calls, parts = parse(f"{FORCED}\n{FORCED}", size, rules(is_forced=True))

    assert content == ""
    assert calls == [("f", '{"a": "}\\"", "b": [{}]}')] * 2
    assert size > 1 or len(parts) > 40


def test_forced_call_that_is_cut_keeps_its_start() -> None:
    """At the length limit, arguments end in the middle and nothing else is said."""
    content, calls, _ = parse(FORCED[:60], 1, rules(is_forced=True))

    assert (content, calls) == ("", [("f", '{"a": "}\\"", "b": [{}')])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("style", [HERMES, LLAMA])
def test_forced_call_that_is_cut_before_its_arguments_is_no_text(
    style: ToolStyle, size: int
) -> None:
    """Wherever it is cut, none of the markup shows, after a whole call as little as alone."""
    start = style.start_of("f")
    call = start + "{}" + style.end

    for num_chars in range(1, len(start)):
        cut = start[:num_chars]

        assert parse(cut, size, rules(style, is_forced=True))[:2] == ("", [])
        if style is HERMES:
            both = f"{call}\n{cut}"
            assert parse(both, size, rules(style, is_forced=True))[:2] == ("", [("f", "{}")])
