"""Reasoning, calls and content in one text."""

import pytest

from nanoserve.server.message_parser import MessageParser, opens_reasoning
from nanoserve.server.message_words import message_of
from nanoserve.server.reasoning import ReasoningSplitter
from nanoserve.server.tool_calls import ToolCallRules
from nanoserve.server.tool_style import HERMES

RULES = ToolCallRules(HERMES, ("f",), is_forced=False, max_calls=8)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_tools_are_looked_for_after_thinking() -> None:
    """A call that the model only thinks of is not made."""
    parser = MessageParser(RULES, ReasoningSplitter(is_open=False), lambda: "id")

    parts = parser.push(f"<think>{CALL}</think>\n\nok{CALL}", is_last=True)

    message = message_of(parts)
    assert (message.reasoning_content, message.content) == (CALL, "ok")
    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"a": 1}']
    assert parser.has_calls


def test_text_is_content_where_nothing_is_looked_for() -> None:
    """Tags of any kind are text."""
    parser = MessageParser(None, None, lambda: "id")

    parts = parser.push(f"<think>{CALL}", is_last=True)

    assert message_of(parts).content == f"<think>{CALL}"
    assert not parser.has_calls


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [("<assistant><think>\n", True), ("<think>\n\n</think>\n\n", False), ("<assistant>", False)],
)
def test_prompt_may_open_the_thinking(prompt: str, is_open: bool) -> None:
    """Some templates end inside the tag, others close it at once."""
    assert opens_reasoning(prompt) is is_open
