"""Places taken and given back."""

import pytest

from nanoserve.engine.reservation import Reservation


def test_places_that_were_not_taken_come_back() -> None:
    """At the end of the block only the rest is given back, once."""
    returned: list[int] = []
    with Reservation(5, returned.append) as places:
        places.take(3)
    places.release()

    assert returned == [2]


def test_more_than_held_cannot_be_taken() -> None:
    """The error has both numbers, and nothing is taken."""
    places = Reservation(2, lambda _: None)

    with pytest.raises(ValueError, match="3 places are wanted and 2"):
        places.take(3)
    assert places.num_places == 2


def test_failed_preparation_gives_everything_back() -> None:
    """An exception inside the block costs no place."""
    returned: list[int] = []
    with pytest.raises(RuntimeError), Reservation(4, returned.append):
        raise RuntimeError

    assert returned == [4]
