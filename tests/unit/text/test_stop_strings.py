"""Stop strings in text that arrives in pieces."""

from nanoserve.text.stop_strings import StopChecker


def test_text_passes_untouched_without_stops() -> None:
    """Without stop strings nothing is held back."""
    checker = StopChecker(())

    assert checker.push("anything\n") == ("anything\n", None)
    assert checker.flush() == ""
    assert checker.matched is None


def test_text_before_the_stop_is_shown() -> None:
    """The stop string and what follows it in the same piece are not shown."""
    checker = StopChecker(("END",))

    assert checker.push("one END two") == ("one ", "END")
    assert checker.matched == "END"


def test_only_what_may_become_a_stop_is_held() -> None:
    """Held back is exactly the longest suffix that begins a stop string."""
    checker = StopChecker(("abab!",))

    assert checker.push("xabab") == ("x", None)
    assert checker.push("a") == ("ab", None)
    assert checker.push("c") == ("abac", None)


def test_stop_across_pieces_is_found() -> None:
    """A stop string may be spread over any number of pieces."""
    checker = StopChecker(("\n\nUser:",))

    shown = [checker.push(piece) for piece in ("hi\n", "\n", "Us", "er", ": x")]

    assert shown == [("hi", None), ("", None), ("", None), ("", None), ("", "\n\nUser:")]


def test_match_that_starts_earlier_wins() -> None:
    """A complete match waits for a longer one that started before it."""
    checker = StopChecker(("bc", "abcd"))

    assert checker.push("abc") == ("", None)
    assert checker.push("d") == ("", "abcd")


def test_waiting_match_wins_when_the_earlier_one_fails() -> None:
    """When the earlier candidate fails, the match that waited for it counts."""
    checker = StopChecker(("bc", "abcd"))

    assert checker.push("abc") == ("", None)
    assert checker.push("x") == ("a", "bc")


def test_shorter_of_two_with_one_start_wins() -> None:
    """Of two stop strings at one place the shorter ends the text."""
    assert StopChecker(("abc", "ab")).push("xabc") == ("x", "ab")


def test_flush_shows_a_stop_that_was_never_completed() -> None:
    """At the end of the answer a begun stop string is ordinary text."""
    checker = StopChecker(("END",))
    checker.push("the EN")

    assert checker.flush() == "EN"
    assert checker.matched is None


def test_flush_cuts_at_a_match_that_was_waiting() -> None:
    """A match that waited for an earlier candidate counts at the end of the answer."""
    checker = StopChecker(("bc", "abcd"))
    checker.push("abc")

    assert checker.flush() == "a"
    assert checker.matched == "bc"


def test_nothing_follows_a_match() -> None:
    """After a match further text is dropped, and so is a flush."""
    checker = StopChecker(("!",))
    checker.push("a!b")

    assert checker.push("c") == ("", "!")
    assert checker.flush() == ""
