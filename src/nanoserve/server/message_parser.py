"""The text of one chat answer to the parts of its message: reasoning, tool calls, content."""

from collections.abc import Callable

from nanoserve.server.message_parts import ContentPart, MessagePart
from nanoserve.server.reasoning import THINK_START, ReasoningSplitter
from nanoserve.server.tool_calls import ToolCallParser, ToolCallRules


class MessageParser:
    """The parser of one answer; without rules and reasoning, all text is content."""

    def __init__(
        self,
        rules: ToolCallRules | None,
        splitter: ReasoningSplitter | None,
        new_id: Callable[[], str],
    ) -> None:
        """Start before the first text.

        Args:
            rules: Which tool calls to look for; None for none.
            splitter: What takes reasoning out of the text; None to leave it in.
            new_id: Makes the ids of tool calls.
        """
        self._splitter = splitter
        self._tools = None if rules is None else ToolCallParser(rules, new_id)

    @property
    def has_calls(self) -> bool:
        """Whether a tool was called so far."""
        return self._tools is not None and self._tools.num_calls > 0

    def push(self, text: str, is_last: bool) -> list[MessagePart]:
        """Take more text; return the parts that are certain, at the end all of them."""
        if self._splitter is None:
            return self._push_content(text, is_last)
        parts: list[MessagePart] = []
        for part in self._splitter.push(text, is_last):
            parts += self._push_content(part.text, False) if _is_content(part) else [part]
        return parts + (self._push_content("", True) if is_last else [])

    def _push_content(self, text: str, is_last: bool) -> list[MessagePart]:
        if self._tools is not None:
            return self._tools.push(text, is_last)
        return [ContentPart(text)] if text else []


def _is_content(part: MessagePart) -> bool:
    return isinstance(part, ContentPart)


def opens_reasoning(prompt_text: str) -> bool:
    """Whether a rendered prompt leaves the model inside think tags."""
    return prompt_text.rstrip().endswith(THINK_START)
