"""Figures with what they may be off by."""

from nanoserve.capacity.interval import Interval


def test_a_known_figure_has_no_width() -> None:
    """What is exact stays so."""
    assert Interval.exactly(5) == Interval(5, 5, 5)


def test_sums_widen() -> None:
    """Both may be off the same way."""
    assert Interval(1, 2, 4) + Interval(10, 20, 40) == Interval(11, 22, 44)


def test_what_is_left_turns_round() -> None:
    """The most is left where the least is taken."""
    assert Interval(1, 2, 4).taken_from(10) == Interval(6, 8, 9)


def test_the_larger_of_two() -> None:
    """Figure by figure."""
    assert Interval(1, 5, 6).or_more(Interval(2, 3, 9)) == Interval(2, 5, 9)


def test_scaling_and_containing() -> None:
    """Factors stand for bytes; the ends belong to it."""
    interval = Interval.scaled((0.5, 1, 2), 10)

    assert interval == Interval(5, 10, 20)
    assert 5 in interval
    assert 21 not in interval
