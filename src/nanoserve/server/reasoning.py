"""Splits what a model thinks, between its think tags, from what it says.

Works on text as it comes: a tag may be cut anywhere, and no part of one gets out.
"""

from enum import Enum

from nanoserve.server.message_parts import ContentPart, ReasoningPart, held_length

THINK_START = "<think>"
THINK_END = "</think>"


class _State(Enum):
    START = 0  # nothing but blanks so far
    REASONING = 1
    CONTENT = 2


class ReasoningSplitter:
    """The splitter of one answer. Blanks after a tag belong to nobody and are dropped."""

    def __init__(self, is_open: bool) -> None:
        """Start before the first text.

        Args:
            is_open: Whether the prompt itself ended with the opening tag.
        """
        self._state = _State.REASONING if is_open else _State.START
        self._drops_blanks = is_open
        self._held = ""

    def push(self, text: str, is_last: bool) -> list[ReasoningPart | ContentPart]:
        """Take more text; return what is certain, which at the end is everything."""
        self._held += text
        parts: list[ReasoningPart | ContentPart] = []
        if self._state is _State.START:
            self._look_for_start(is_last)
        if self._state is _State.REASONING:
            reasoning = self._take_reasoning(is_last)
            parts += [ReasoningPart(reasoning)] if reasoning else []
        if self._state is _State.CONTENT:
            self._drop_blanks()
            content, self._held = self._held, ""
            parts += [ContentPart(content)] if content else []
        return parts

    def _look_for_start(self, is_last: bool) -> None:
        stripped = self._held.lstrip()
        if stripped.startswith(THINK_START):
            self._enter(_State.REASONING, stripped.removeprefix(THINK_START))
        elif is_last or not THINK_START.startswith(stripped):
            self._state = _State.CONTENT

    def _take_reasoning(self, is_last: bool) -> str:
        self._drop_blanks()
        reasoning, end, rest = self._held.partition(THINK_END)
        if end:
            self._enter(_State.CONTENT, rest)
            return reasoning
        num_held = 0 if is_last else held_length(self._held, THINK_END)
        reasoning = self._held[: len(self._held) - num_held]
        self._held = self._held[len(reasoning) :]
        return reasoning

    def _enter(self, state: _State, rest: str) -> None:
        self._state, self._held, self._drops_blanks = state, rest, True

    def _drop_blanks(self) -> None:
        if self._drops_blanks:
            self._held = self._held.lstrip()
            self._drops_blanks = not self._held
