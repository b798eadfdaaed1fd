"""Tokens to text, stop strings, and why an answer ended."""

from typing import Any

import pytest

from nanoserve.engine.interface import OutputDelta
from nanoserve.engine.output_processor import OutputProcessor
from nanoserve.sched.step import FinishReason, TokenEvent, TokenLogprobs
from tests.builders import make_request
from tests.fakes import ByteTokenizer


def feed(text: bytes, end: FinishReason | None = None, **sampling: Any) -> list[OutputDelta]:
    """Return the deltas of one token per byte; the last event carries `end`."""
    processor = OutputProcessor(ByteTokenizer())
    processor.add(make_request(**sampling))
    deltas = []
    for position, byte in enumerate(text):
        is_last = position == len(text) - 1
        deltas.append(processor.process(TokenEvent("a", byte, end if is_last else None)))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


def test_multi_byte_character_is_held_until_complete() -> None:
    """No delta shows a part of a character."""
    deltas = feed("č🎉".encode())

    assert [delta.text for delta in deltas] == ["", "č", "", "", "", "🎉"]


def test_unfinished_character_is_flushed_at_the_end() -> None:
    """An answer cut inside a character ends with its replacement."""
    deltas = feed("ab🎉".encode()[:4], FinishReason.LENGTH)

    assert "".join(delta.text for delta in deltas) == "ab\ufffd"


@pytest.mark.parametrize("stop", ["lo w", "o wo", "hello", "d"])
def test_stop_string_across_tokens_ends_the_answer_before_it(stop: str) -> None:
    """The text ends where the stop string begins, and the reason names it."""
    deltas = feed(b"hello world", FinishReason.LENGTH, stop=(stop,))

    text = "".join(delta.text for delta in deltas)
    assert text == "hello world"[: "hello world".index(stop)]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_reason == stop


def test_stop_string_is_never_shown_in_part() -> None:
    """What may become a stop string is held back until it does not."""
    deltas = feed(b"a<en", stop=("<end>",))

    assert [delta.text for delta in deltas] == ["a", "", "", ""]


def test_held_text_is_flushed_at_the_end() -> None:
    """A beginning of a stop string that came to nothing is part of the answer."""
    deltas = feed(b"a<en", FinishReason.LENGTH, stop=("<end>",))

    assert deltas[-1].text == "<en"
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_stop_string_completed_by_the_last_token_wins_over_length() -> None:
    """An answer that ends on its stop string with its last token ended by the string."""
    deltas = feed(b"ab", FinishReason.LENGTH, stop=("b",))

    assert (deltas[-1].text, deltas[-1].finish_reason) == ("", FinishReason.STOP)


def test_stop_string_is_shown_where_it_is_included() -> None:
    """With include_stop the text ends behind the stop string, not before it."""
    deltas = feed(b"hello world", FinishReason.LENGTH, stop=("lo w",), include_stop=True)

    assert "".join(delta.text for delta in deltas) == "hello w"
    assert deltas[-1].stop_reason == "lo w"


def test_no_stop_string_is_found_in_the_first_min_tokens() -> None:
    """The search begins with the text of the token after them."""
    deltas = feed(b"abababab", FinishReason.LENGTH, stop=("ab",), min_tokens=3, max_tokens=8)

    assert "".join(delta.text for delta in deltas) == "abab"
    assert len(deltas) == 6
    assert deltas[-1].finish_reason is FinishReason.STOP


def test_an_answer_as_short_as_min_tokens_shows_all_its_text() -> None:
    """Nothing is held back when the last of them ends the answer."""
    deltas = feed(b"ab", FinishReason.LENGTH, stop=("b",), min_tokens=2, max_tokens=2)

    assert "".join(delta.text for delta in deltas) == "ab"
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_tokens_under_a_stop_string_keep_their_logprobs() -> None:
    """Their text is cut; they were drawn, so their ids and logprobs are told."""
    processor = OutputProcessor(ByteTokenizer())
    processor.add(make_request(stop=("b",)))
    entry = TokenLogprobs(98, -0.5)

    delta = processor.process(TokenEvent("a", 98, logprobs=entry))

    assert (delta.text, delta.token_ids, delta.logprobs) == ("", (98,), (entry,))


def test_failed_request_ends_with_its_problem() -> None:
    """Held text is dropped: it can neither complete the answer nor match a stop string."""
    processor = OutputProcessor(ByteTokenizer())
    processor.add(make_request(stop=("abc", "b")))
    processor.process(TokenEvent("a", 97))

    delta = processor.process(TokenEvent("a", None, FinishReason.ERROR, error="broken"))

    assert (delta.text, delta.finish_reason) == ("", FinishReason.ERROR)
    assert delta.error == "broken"


def test_stop_token_counts_but_is_not_text() -> None:
    """The stop id is in the token ids and names itself; its text is not shown."""
    processor = OutputProcessor(ByteTokenizer())
    processor.add(make_request())

    delta = processor.process(TokenEvent("a", 33, FinishReason.STOP, stop_token_id=33))

    assert (delta.text, delta.token_ids, delta.stop_reason) == ("", (33,), 33)


def test_removed_request_is_forgotten() -> None:
    """After `remove`, twice even, the id is free again."""
    processor = OutputProcessor(ByteTokenizer())
    processor.add(make_request())
    processor.remove("a")
    processor.remove("a")

    with pytest.raises(KeyError):
        processor.process(TokenEvent("a", 33))
