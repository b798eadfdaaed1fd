"""Finds where a JSON object ends in text that comes in pieces."""

import re

_MARK = re.compile(r'["\\{}\[\]]')


class JsonEnd:
    """Counts brackets outside strings, without looking at a character twice.

    Attributes:
        is_no_object: The text does not begin with a brace.
    """

    def __init__(self) -> None:
        self.is_no_object = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False  # the last piece ended with a backslash

    def feed(self, text: str) -> int | None:
        """Take more text; return where in it the object ends, exclusive, or None."""
        if self._depth == 0 and text.strip():
            self.is_no_object = not text.lstrip().startswith("{")
        position = int(self._is_escaped and bool(text))
        self._is_escaped = self._is_escaped and not text
        while not self.is_no_object and (mark := _MARK.search(text, position)):
            position = mark.end()
            if mark[0] == "\\":
                self._is_escaped = position == len(text)
                position += 1
            elif mark[0] == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if mark[0] in "{[" else -1
                if self._depth == 0:
                    return position
        return None
