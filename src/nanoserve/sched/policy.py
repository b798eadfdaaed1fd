"""The choices of the scheduler, as pure functions: who goes first and who has to go.

Requests are in age order everywhere: admission is first come, first served, and a victim
is the youngest that runs, so every running request is older than every waiting one.
"""

from collections.abc import Sequence

from nanoserve.errors import InvariantError
from nanoserve.sched.request import Request


def order_by_phase(running: Sequence[Request]) -> list[Request]:
    """Return decodes, then prefills, each oldest first.

    A decode has one token left to compute. Going first, none of them ever waits behind a
    prompt: the token budget covers one token of every running request.
    """
    return sorted(running, key=lambda request: request.num_uncomputed_tokens > 1)


def pick_victim(running: Sequence[Request]) -> Request:
    """Return the request to preempt: the youngest, which loses the least work.

    Raises:
        InvariantError: Only the oldest is left. It fits the pool alone, or it would not
            have been admitted.
    """
    if len(running) < 2:
        ids = [request.request_id for request in running]
        message = f"no victim among {ids}: the oldest running request is never preempted"
        raise InvariantError(message)
    return running[-1]
