"""How many prompt tokens a step may hold, so that running answers do not stall behind it.

A chunk of a prompt lengthens the step, and with it the gap between two tokens of every
answer in it. Owns the rule; what steps cost is `step_cost`'s. The scheduler asks, the
engine tells.
"""

from collections.abc import Iterable

from nanoserve.sched.request import Request
from nanoserve.sched.step_cost import StepCost, StepSize

MIN_CHUNK = 12  # prompt tokens a step may always hold, so that a prompt gets on whatever it costs
_NO_BOUND = 1e9  # tokens; more than any step holds
_SHARE = 0.8  # of the time of decodes, that one prompt adds to their gap: it stays under double
_CROWD = 4.0  # a prompt counts as much as so many decodes: a crowd of them comes first


class StepPace:
    """Bounds the prompt tokens of a step that decodes share.

    Without a target, prompts get somewhat less of the step than decodes: one prompt not quite
    doubles the gap of those that run. Where prompts are more than a fifth of the decodes their
    share grows with their number, so that a crowd of them is read before few go on alone.
    """

    def __init__(self, target_s: float | None = None) -> None:
        """Start without estimates.

        Args:
            target_s: Seconds that a step with decodes and prompts may take; None is the
                share above.
        """
        self._target_s = target_s
        self._cost = StepCost()

    def prompt_budget(self, running: Iterable[Request], num_joining: int) -> int | None:
        """Return the most prompt tokens of the next step; None is no bound.

        Args:
            running: Requests that hold a place; those with one token to compute decode.
            num_joining: Requests that could be admitted if there were budget.
        """
        num_decodes = 0
        prompts_at: list[int] = []  # how far each was read
        for request in running:
            if request.num_uncomputed_tokens == 1:
                num_decodes += 1
            else:
                prompts_at.append(request.num_computed_tokens)
        num_prompts = len(prompts_at) + num_joining
        if not num_decodes or not num_prompts:
            return None
        decode_s = self._cost.decode_s(num_decodes)
        token_s = self._cost.token_s(prompts_at[0] if prompts_at else 0)
        if not decode_s or not token_s:
            return None
        if self._target_s is None:
            share_s = decode_s * max(_SHARE, _CROWD * num_prompts / num_decodes)
        else:
            share_s = self._target_s - decode_s
        return max(MIN_CHUNK, round(min(share_s / token_s, _NO_BOUND)))

    def observe(self, size: StepSize, seconds: float) -> None:
        """Take in how long a step took; see `StepCost.observe`."""
        self._cost.observe(size, seconds)
