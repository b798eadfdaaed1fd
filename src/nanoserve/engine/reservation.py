"""Places in the engine, taken before the costly part of a call and given back with it."""

from collections.abc import Callable
from types import TracebackType
from typing import Self


class Reservation:
    """Places held by a call that has not submitted its requests yet.

    A context manager: at its end the places that no request took are given back. A
    place that a request took is given back by the engine when the request ends.
    """

    def __init__(self, num_places: int, give_back: Callable[[int], None]) -> None:
        self.num_places = num_places
        self._give_back = give_back

    def take(self, num_places: int) -> None:
        """Hand places over to requests.

        Raises:
            ValueError: More than are held.
        """
        if num_places > self.num_places:
            message = f"{num_places} places are wanted and {self.num_places} are held"
            raise ValueError(message)
        self.num_places -= num_places

    def release(self) -> None:
        """Give back the places still held; nothing happens the second time."""
        num_places, self.num_places = self.num_places, 0
        if num_places:
            self._give_back(num_places)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
