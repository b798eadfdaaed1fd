"""`RequestQueue`: requests in order of urgency, the one order that scheduling knows.

Knows nothing of blocks or budgets; what the order is used for is `scheduler`'s.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from nanoserve.errors import InvariantError
from nanoserve.sched.request import Request


def urgency(request: Request) -> tuple[int, int]:
    """Return the sort key of a request: its priority, then its place in order of arrival."""
    return request.priority, request.arrival


class RequestQueue:
    """A list sorted by `urgency`, the most urgent first.

    Finding a place takes log(n) comparisons, making it moves 8 bytes per request behind
    it: under 10 us at 10,000 requests.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def first(self) -> Request:
        """The most urgent; the queue must not be empty."""
        return self._requests[0]

    def add(self, request: Request) -> None:
        """Put `request` where it belongs."""
        insort(self._requests, request, key=urgency)

    def remove(self, request: Request) -> None:
        """Take out `request`.

        Raises:
            InvariantError: It is not in the queue.
        """
        index = bisect_left(self._requests, urgency(request), key=urgency)
        if request not in self._requests[index : index + 1]:
            message = f"request {request.request_id!r} is not in the queue it should be in"
            raise InvariantError(message)
        del self._requests[index]
