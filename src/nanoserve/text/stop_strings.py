"""`StopChecker`: finds stop strings in text that arrives in pieces.

Owns what may be shown and what has to wait. Knows no tokens; `detokenizer` makes the text.
"""


class StopChecker:
    """Cuts a stream of text at the first stop string.

    The match with the smallest start wins; of two with one start, the shorter. Text is held
    back for as long as it may belong to a stop string, and no longer:

    ```
    text    [ shown ........ | held: the longest suffix that begins a stop string )
                             ^ a match that starts later waits for this one to fail or win
    ```

    What has been shown in the end is the same however the text was cut into pieces.

    Attributes:
        matched: The stop string that ended the text; None so far.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.matched: str | None = None
        self._searches = [_StopSearch(stop) for stop in stops if stop]
        self._held = ""
        self._shown_chars = 0
        self._seen_chars = 0
        self._match: tuple[int, int, str] | None = None  # start, length, stop string

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more text; return what may be shown, and the stop string once it is certain.

        After a match, further text is dropped and the match is returned again.
        """
        if self.matched is not None:
            return "", self.matched
        if not self._searches:
            return text, None
        self._held += text
        for char in text:
            self._advance(char)
            if self._match is not None and self._match[0] <= self._pending_start():
                return self._finish(), self.matched
        return self._show_up_to(self._pending_start()), None

    def flush(self) -> str:
        """Return the held text, at the end of the answer; cut where a match was waiting.

        `matched` says afterwards whether there was one.
        """
        if self._match is not None:
            return self._finish()
        return self._show_up_to(self._seen_chars)

    def _advance(self, char: str) -> None:
        self._seen_chars += 1
        for search in self._searches:
            if search.advance(char):
                length = len(search.stop)
                found = (self._seen_chars - length, length, search.stop)
                self._match = found if self._match is None else min(self._match, found)

    def _pending_start(self) -> int:
        return self._seen_chars - max(search.num_matched for search in self._searches)

    def _finish(self) -> str:
        if self._match is None or self.matched is not None:
            return ""
        start, _, self.matched = self._match
        shown = self._show_up_to(start)
        self._held = ""
        return shown

    def _show_up_to(self, end: int) -> str:
        num_chars = end - self._shown_chars
        shown, self._held = self._held[:num_chars], self._held[num_chars:]
        self._shown_chars = end
        return shown


class _StopSearch:
    """How much of one stop string the text ends with: constant work per character.

    Source: Knuth, Morris and Pratt 1977, "Fast Pattern Matching in Strings".
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0  # the text's longest suffix that is a proper prefix of `stop`
        self._borders = [0]  # longest proper prefix of stop[:i + 1] that is also its suffix
        for char in stop[1:]:
            self._borders.append(self._extend(self._borders[-1], char))

    def advance(self, char: str) -> bool:
        """Take one character; return whether the text now ends with the stop string."""
        self.num_matched = self._extend(self.num_matched, char)
        if self.num_matched < len(self.stop):
            return False
        self.num_matched = self._borders[-1]
        return True

    def _extend(self, num_matched: int, char: str) -> int:
        while num_matched and self.stop[num_matched] != char:
            num_matched = self._borders[num_matched - 1]
        return num_matched + (self.stop[num_matched] == char)
