"""A message is the same however its text is cut into pieces."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nanoserve.server.answer_models import ChatAnswerMessage
from nanoserve.server.message_parser import MessageParser
from nanoserve.server.message_words import message_of
from nanoserve.server.reasoning import ReasoningSplitter
from nanoserve.server.tool_calls import ToolCallRules
from nanoserve.server.tool_style import HERMES, LLAMA

SCRAPS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {"a": "}\\\\\\""}}',
        '{"name": "f", "parameters": {}}',
        '{"name": "g", "arguments": {}}',
        '{"name": ',
        "\n",
        " ",
        ";",
        "text",
        "<",
        "{",
        "}",
        '"',
        "\\",
    ]
)
texts = st.lists(SCRAPS, max_size=10).map("".join)
rules = st.none() | st.builds(
    ToolCallRules,
    style=st.sampled_from([HERMES, LLAMA]),
    names=st.just(("f",)),
    is_forced=st.booleans(),
    max_calls=st.sampled_from([1, 8]),
)
splits = st.sampled_from([None, False, True])


def message(
    pieces: list[str], rules: ToolCallRules | None, opens_in_reasoning: bool | None
) -> ChatAnswerMessage:
    splitter = None if opens_in_reasoning is None else ReasoningSplitter(opens_in_reasoning)
    parser = MessageParser(rules, splitter, lambda: "id")
    parts = [part for piece in pieces for part in parser.push(piece, is_last=False)]
    return message_of([*parts, *parser.push("", is_last=True)])


@given(text=texts, rules=rules, opens=splits, data=st.data())
def test_message_does_not_depend_on_the_pieces(
    text: str, rules: ToolCallRules | None, opens: bool | None, data: st.DataObject
) -> None:
    """One piece, single characters and any cut give the same message."""
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]

    whole = message([text], rules, opens)

    assert message(pieces, rules, opens) == whole
    assert message(list(text), rules, opens) == whole


@given(text=texts, opens=splits)
def test_free_calls_have_objects_as_arguments(text: str, opens: bool | None) -> None:
    """What the model wrote freely is a call with arguments that parse, or text."""
    for style in (HERMES, LLAMA):
        rules = ToolCallRules(style, ("f",), is_forced=False, max_calls=8)

        for call in message([text], rules, opens).tool_calls or ():
            assert isinstance(json.loads(call.function.arguments), dict)
            assert call.function.name == "f"


@given(text=texts)
def test_without_rules_text_is_content(text: str) -> None:
    """Not a character is added or lost."""
    assert message(list(text), None, None).content == text
