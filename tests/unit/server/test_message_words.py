"""Parts of a message in OpenAI's words."""

from nanoserve.server.message_parts import (
    CallArguments,
    CallStart,
    ContentPart,
    MessagePart,
    ReasoningPart,
)
from nanoserve.server.message_words import delta_of, message_of

PARTS: list[MessagePart] = [
    ReasoningPart("hm"),
    CallStart(0, "c0", "f"),
    CallArguments(0, "{"),
    CallArguments(0, "}"),
    CallStart(1, "c1", "g"),
    CallArguments(1, "{}"),
]


def test_message_of_calls_has_no_content() -> None:
    """Null, not an empty text; arguments are joined call by call."""
    assert message_of(PARTS).model_dump(exclude_unset=True) == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "c1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_plain_message_has_the_three_keys() -> None:
    """Nothing is said of reasoning and calls where there are none."""
    expected = {"role": "assistant", "content": "ab", "refusal": None}

    parts = [ContentPart("a"), ContentPart("b")]
    assert message_of(parts).model_dump(exclude_unset=True) == expected
    assert message_of([]).content == ""


def test_deltas_say_one_thing_each() -> None:
    """Keys that say nothing are absent."""
    shown = [delta_of(part).model_dump(exclude_unset=True) for part in PARTS[:3]]

    start = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert shown == [
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0} | start]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ]
    assert delta_of(ContentPart("x")).model_dump(exclude_unset=True) == {"content": "x"}
