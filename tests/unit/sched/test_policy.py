"""`policy`: who goes first and who has to go."""

import pytest

from nanoserve.errors import InvariantError
from nanoserve.sched.policy import order_by_phase, pick_victim
from nanoserve.sched.request import Request
from nanoserve.sched.sampling_params import SamplingParams


def request_with(request_id: str, num_uncomputed_tokens: int) -> Request:
    request = Request(request_id, (1,) * 10, SamplingParams(), seed=0)
    request.num_computed_tokens = 10 - num_uncomputed_tokens
    return request


def test_decodes_go_before_prefills_each_in_age_order() -> None:
    """One token left makes a decode; the order of age is kept within each phase."""
    running = [request_with(name, num) for name, num in (("a", 9), ("b", 1), ("c", 2), ("d", 1))]

    ordered = [request.request_id for request in order_by_phase(running)]

    assert ordered == ["b", "d", "a", "c"]


def test_the_victim_is_the_youngest() -> None:
    """The least urgent of the running requests goes, whatever it is doing."""
    running = [request_with(name, 1) for name in "abc"]

    assert pick_victim(running) is running[-1]


@pytest.mark.parametrize("names", ["", "a"])
def test_the_most_urgent_is_never_the_victim(names: str) -> None:
    """With nobody less urgent there is no victim."""
    running = [request_with(name, 1) for name in names]

    with pytest.raises(InvariantError, match="never preempted"):
        pick_victim(running)
