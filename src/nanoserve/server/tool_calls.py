"""Finds tool calls in the text of an answer, as it comes.

A call that the model wrote freely is held back until it is whole, and is shown as text if
it is none: so arguments always are a JSON object. A call that a grammar forced is passed
on as it grows.
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from nanoserve.errors import InvalidRequestError
from nanoserve.server.json_body import parse_object
from nanoserve.server.json_end import JsonEnd
from nanoserve.server.message_parts import (
    CallArguments,
    CallStart,
    ContentPart,
    MessagePart,
    held_length,
)
from nanoserve.server.tool_style import ToolStyle

_BLANKS_BETWEEN = " \n\r\t;"  # Llama's calls may be parted by semicolons


@dataclass(frozen=True, slots=True)
class ToolCallRules:
    """Which calls count.

    Attributes:
        style: How the model writes them.
        names: Functions that may be called.
        is_forced: A grammar makes the answer a call of the exact form.
        max_calls: What goes beyond is text.
    """

    style: ToolStyle
    names: Collection[str]
    is_forced: bool
    max_calls: int


class _State(Enum):
    EDGE = 0  # nothing but blanks since the start or since a call
    TEXT = 1
    CALL = 2  # an object that may be a call; held whole
    ARGUMENTS = 3  # of a forced call; passed on
    END = 4  # what closes a call


class ToolCallParser:
    """The parser of one answer."""

    def __init__(self, rules: ToolCallRules, new_id: Callable[[], str]) -> None:
        """Start before the first text.

        Args:
            rules: Of the call.
            new_id: Makes the ids of tool calls.
        """
        self.num_calls = 0
        self._rules = rules
        self._style = rules.style
        self._new_id = new_id
        self._state = _State.EDGE
        self._held = ""
        self._opened_by = ""  # what the held call began with
        self._num_seen = 0  # characters of it that `_scan` has had
        self._scan = JsonEnd()

    def push(self, text: str, is_last: bool) -> list[MessagePart]:
        """Take more text; return what is certain, which at the end is everything."""
        self._held += text
        parts: list[MessagePart] = []
        steps = {
            _State.EDGE: self._at_edge,
            _State.TEXT: self._in_text,
            _State.CALL: self._in_forced_call if self._rules.is_forced else self._in_call,
            _State.ARGUMENTS: self._in_arguments,
            _State.END: self._at_end,
        }
        state = None
        while state is not self._state:  # until nothing more is certain
            state = self._state
            parts += steps[state]()
        if is_last:
            parts += self._flush()
        return parts

    def _at_edge(self) -> list[MessagePart]:
        """Drop blanks before a call; leave them to text that begins the answer."""
        stripped = self._held.lstrip(_BLANKS_BETWEEN if self.num_calls else None)
        opening = self._style.opening or "{"
        if not stripped or (len(stripped) < len(opening) and opening.startswith(stripped)):
            return []
        if stripped.startswith(opening) and self.num_calls < self._rules.max_calls:
            self._enter_call(stripped)
        else:
            self._held = stripped if self.num_calls else self._held
            self._state = _State.TEXT
        return []

    def _in_text(self) -> list[MessagePart]:
        opening = self._style.opening
        is_open = bool(opening) and self.num_calls < self._rules.max_calls
        start = self._held.find(opening) if is_open else -1
        if start >= 0:
            text, call = self._held[:start], self._held[start:]
            self._enter_call(call)
        else:
            num_held = held_length(self._held, opening) if is_open else 0
            text = self._held[: len(self._held) - num_held]
            self._held = self._held[len(text) :]
        return [ContentPart(text)] if text else []

    def _enter_call(self, text: str) -> None:
        self._state = _State.CALL
        self._opened_by = self._style.opening
        self._held = text.removeprefix(self._opened_by)
        self._num_seen = 0
        self._scan = JsonEnd()

    def _in_call(self) -> list[MessagePart]:
        """Hold an object until it is whole; then it is a call or text."""
        unseen, self._num_seen = self._held[self._num_seen :], len(self._held)
        end = self._scan.feed(unseen)
        if self._scan.is_no_object:
            return self._give_up()
        if end is None:
            return []
        end += self._num_seen - len(unseen)
        call = _read_call(self._held[:end], self._style, self._rules.names)
        if call is None:
            return self._give_up()
        self._held = self._held[end:]
        self._state = _State.END
        return [self._start(call[0]), CallArguments(self.num_calls - 1, call[1])]

    def _give_up(self) -> list[MessagePart]:
        """Show as text what began like a call."""
        text = self._opened_by
        self._state = _State.TEXT
        return [ContentPart(text)] if text else []

    def _in_forced_call(self) -> list[MessagePart]:
        start = re.match(r'\s*\{"name": "([^"]+)", "[a-z]+": ', self._held)
        if start is None:
            return []
        self._held = self._held[start.end() :]
        self._scan = JsonEnd()
        self._state = _State.ARGUMENTS
        return [self._start(start[1])]

    def _in_arguments(self) -> list[MessagePart]:
        end = self._scan.feed(self._held)
        text = self._held if end is None else self._held[:end]
        self._held = self._held[len(text) :]
        if end is not None:
            self._state = _State.END
        return [CallArguments(self.num_calls - 1, text)] if text else []

    def _at_end(self) -> list[MessagePart]:
        """Skip what closes a call; a model that leaves it out has ended the call as well."""
        is_forced = self._rules.is_forced
        closing = self._style.end if is_forced else self._style.closing
        rest = self._held if is_forced else self._held.lstrip()
        if len(rest) < len(closing) and closing.startswith(rest):
            return []
        self._held = rest.removeprefix(closing)
        self._state = _State.EDGE
        return []

    def _start(self, name: str) -> CallStart:
        self.num_calls += 1
        return CallStart(self.num_calls - 1, self._new_id(), name)

    def _flush(self) -> list[MessagePart]:
        """Return what is held when the answer ends: text, but for what is of or around calls.

        A forced answer has no text; what is held is a call that was cut before its arguments.
        """
        text = self._opened_by + self._held if self._state is _State.CALL else self._held
        self._held = ""
        is_around_call = self._state is _State.END or (self.num_calls and not text.strip())
        is_no_text = self._rules.is_forced or is_around_call or not text
        return [] if is_no_text else [ContentPart(text)]


def _read_call(text: str, style: ToolStyle, names: Collection[str]) -> tuple[str, str] | None:
    """Return name and arguments, the latter as JSON text; None if `text` is no call."""
    try:
        call = parse_object(text.encode())
    except InvalidRequestError:
        return None
    arguments = call.get(style.arguments_key)
    name = call.get("name")
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments, ensure_ascii=False)
