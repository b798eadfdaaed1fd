"""The choices of the scheduler, as pure functions: who goes first and who has to go.

Requests are in order of urgency everywhere (see `request_queue`): by priority, and by
arrival within one. Admission takes the most urgent that waits and a victim is the least
urgent that runs, so within one priority every running request is older than every waiting
one; with a single priority this is first come, first served.
"""

from collections.abc import Iterable, Sequence

from nanoserve.errors import InvariantError
from nanoserve.sched.request import Request


def order_by_phase(running: Iterable[Request]) -> list[Request]:
    """Return decodes, then prefills, each in the order given.

    A decode has one token left to compute. Going first, none of them ever waits behind a
    prompt: the token budget covers one token of every running request.
    """
    return sorted(running, key=lambda request: request.num_uncomputed_tokens > 1)


def pick_victim(running: Sequence[Request]) -> Request:
    """Return the request to preempt: the youngest of the least urgent priority.

    Args:
        running: In order of urgency.

    Raises:
        InvariantError: Only the most urgent is left. It fits the pool alone, or it would
            not have been admitted.
    """
    if len(running) < 2:
        ids = [request.request_id for request in running]
        message = f"no victim among {ids}: the most urgent running request is never preempted"
        raise InvariantError(message)
    return running[-1]
