"""`request_queue`: one order for everything that waits or runs."""

import pytest

from nanoserve.errors import InvariantError
from nanoserve.sched.request import Request
from nanoserve.sched.request_queue import RequestQueue
from nanoserve.sched.sampling_params import SamplingParams


def request_of(priority: int, arrival: int) -> Request:
    name = f"{priority}/{arrival}"
    return Request(name, (1,), SamplingParams(), seed=0, priority=priority, arrival=arrival)


def queue_of(*keys: tuple[int, int]) -> tuple[RequestQueue, list[Request]]:
    queue = RequestQueue()
    requests = [request_of(*key) for key in keys]
    for request in requests:
        queue.add(request)
    return queue, requests


def names(queue: RequestQueue) -> list[str]:
    return [request.request_id for request in queue]


def test_lower_priority_numbers_go_first_and_equals_by_arrival() -> None:
    """However they were added, the order is by priority and then by arrival."""
    queue, _ = queue_of((0, 1), (5, 0), (0, 3), (-1, 9), (0, 2))

    assert names(queue) == ["-1/9", "0/1", "0/2", "0/3", "5/0"]
    assert queue.first.request_id == "-1/9"


def test_a_request_that_comes_back_takes_its_old_place() -> None:
    """Arrival is the request's own, so a victim of preemption goes before later ones."""
    queue, requests = queue_of((0, 0), (0, 1), (0, 2))
    queue.remove(requests[1])

    queue.add(requests[1])

    assert names(queue) == ["0/0", "0/1", "0/2"]
    assert len(queue) == 3


@pytest.mark.parametrize("key", [(0, 0), (0, 5), (9, 9)])
def test_only_what_is_in_the_queue_can_be_removed(key: tuple[int, int]) -> None:
    """A stranger takes no other request's place with it."""
    queue, _ = queue_of((0, 0), (1, 1))

    with pytest.raises(InvariantError, match="not in the queue"):
        queue.remove(request_of(*key))

    assert len(queue) == 2
