"""Stop strings end a stream where they end the whole text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.text.stop_strings import StopChecker

_LETTERS = st.text("abé", max_size=30)
_STOPS = st.lists(st.text("abé", min_size=1, max_size=5), max_size=4).map(tuple)


def _unary(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    starts = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not starts:
        return text, None
    start, _, stop = min(starts)
    return text[:start], stop


def _held_at_most(text: str, stops: tuple[str, ...]) -> int:
    prefixes = {stop[:length] for stop in stops for length in range(len(stop))}
    return max((len(prefix) for prefix in prefixes if text.endswith(prefix)), default=0)


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(_LETTERS, max_size=8), stops=_STOPS)
def test_pieces_give_the_unary_answer(pieces: list[str], stops: tuple[str, ...]) -> None:
    """However text is cut, what is shown and what matched are those of the whole text."""
    checker = StopChecker(stops)

    shown = "".join([checker.push(piece)[0] for piece in pieces])
    shown += checker.flush()

    assert (shown, checker.matched) == _unary("".join(pieces), stops)


@settings(max_examples=300, deadline=None)
@given(text=_LETTERS, stops=_STOPS)
def test_holds_back_no_more_than_it_must(text: str, stops: tuple[str, ...]) -> None:
    """While no stop string is in the text, held is exactly what may become one."""
    text = _unary(text, stops)[0]
    if any(stop in text for stop in stops):
        return

    shown, _ = StopChecker(stops).push(text)

    assert len(text) - len(shown) == _held_at_most(text, stops)
